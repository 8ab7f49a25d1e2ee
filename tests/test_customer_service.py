"""The five-source example runs, and a new version of a policy leaves no trace of the old one."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from cli_fixtures import ROOT, call, environment, good, quiet_logs
from pipeline_help import check

from ctx_vector import ContextBuilder

FIXTURES = (quiet_logs,)
EXAMPLE = runpy.run_path(str(ROOT / "examples" / "customer_service.py"))
OLD = {"zh": ("七天内可以申请退货", "十五个工作日", "超过七天"), "en": ("within seven days", "fifteen working days")}
NEW = {
    "zh": ("三十天内可以申请退货", "三个工作日", "运费由本店承担"),
    "en": ("within thirty days", "three working days"),
}


@pytest.fixture
def shop(tmp_path, encoder):
    settings = EXAMPLE["prepare"](tmp_path)
    return tmp_path, ContextBuilder.from_config(settings, scope="service", allow_python=True, encoder=encoder)


def ask(builder, question, **arguments):
    built = builder.assemble(question, now=EXAMPLE["NOW"], **arguments)
    check(built, 102_400)
    assert built.budget.total_limit == 102_400
    return built


@pytest.mark.parametrize("language", ["zh", "en"])
def test_version_2_replaces_version_1_without_a_trace(shop, language):
    folder, builder = shop
    question = EXAMPLE["QUESTIONS"][language == "en"]
    before = ask(builder, question)
    for words in OLD[language]:
        assert words in " ".join(before.text.split())
    assert not any(words in before.text for words in NEW[language])
    EXAMPLE["publish"](folder)
    after = ask(builder, question)
    for words in NEW[language]:
        assert words in " ".join(after.text.split())
    for other in OLD.values():  # in neither language
        assert not any(words in " ".join(after.text.split()) for words in other)
    assert "(version: 1)" not in "".join(
        item.rendered for item in after.kept if "refund" in str(item.packet.meta.get("document_id"))
    )
    assert "(version: 2)" in after.text
    assert all(
        item.reason == "superseded" for item in after.dropped if "refund-v1" in str(item.packet.meta.get("source"))
    )


def test_all_five_sources_are_in_the_context_in_the_order_of_their_layers(shop):
    built = ask(shop[1], EXAMPLE["QUESTIONS"][0])
    assert set(built.budget.sources) == {"rules", "profile", "faq", "policies", "order"}
    assert all(use.kept for use in built.budget.sources.values())
    text = built.text
    places = [
        text.index(words)
        for words in ("你是一家家居用品商店的客服", "金卡会员 (gold)", "怎么开发票", "退货政策", "榉木餐椅")
    ]
    assert places == sorted(places)
    assert [(item.source, item.reason) for item in built.dropped] == [("faq", "expired")]


def test_the_profile_is_that_of_the_customer_and_orders_are_looked_up(shop):
    _, builder = shop
    built = ask(builder, "订单A1002到哪了？", overrides={"profile": "name: 李雷\nlevel: 普通会员"})
    assert "李雷" in built.text and "王芳" not in built.text
    assert "羊毛地毯" in built.text and "榉木餐椅" not in built.text
    built = ask(builder, "订单A9999到哪了？")
    assert ("order", "empty") in [(item.source, item.reason) for item in built.dropped]


def test_the_shares_of_the_file_are_those_of_the_design(shop):
    found = json.loads(
        good(call("config", "check", shop[0] / "context.yaml", "--scope", "service", "--allow-python", "--json"))
    )
    assert found["model"]["max_tokens"] == 128_000 and found["total"] == 102_400
    assert {name: layer["share"] for name, layer in found["layers"].items()} == {
        "system": 0.1, "static": 0.2, "dynamic": 0.5, "tool": 0.15, "buffer": 0.05
    }  # fmt: skip
    assert {item["name"]: item["layer"] for item in found["sources"]} == {
        "rules": "system", "profile": "static", "faq": "static", "policies": "dynamic", "order": "tool"
    }  # fmt: skip


def test_the_command_line_builds_with_the_file(shop):
    folder, builder = shop
    question = EXAMPLE["QUESTIONS"][0]
    options = ["--config", folder / "context.yaml", "--scope", "service", "--now", EXAMPLE["NOW"]]
    done = call("build", question, *options)
    assert done.exit_code == 1 and "python: runs code" in done.stderr
    built = json.loads(good(call("build", question, *options, "--allow-python", "--json")))
    assert built["text"] == ask(builder, question).text
    small = json.loads(good(call("build", question, *options, "--allow-python", "--max-tokens", 3000, "--json")))
    assert small["budget"]["total_limit"] == 3000


def test_the_example_runs():
    done = subprocess.run(
        [sys.executable, str(Path("examples") / "customer_service.py"), "--text"],
        cwd=ROOT, env=environment(), capture_output=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    before, after = done.stdout.split("--- version 2 of the return policy is published ---")
    assert "七天内可以申请退货" in before and "七天内可以申请退货" not in after
    assert len(re.findall(r"of 102400 tokens", done.stdout)) == 4
