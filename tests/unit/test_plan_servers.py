"""Time, money, disks, the choice of a sharding, advice, and the comparison of everything."""

from __future__ import annotations

import pytest

from engine.errors import UsageError
from engine.plan import choose, everything, request, servers, speed, storage
from engine.plan.plan import context, evaluate, plan

BASE = {"model": "meta-llama/Llama-3.1-8B", "method": "lora", "max_length": 2048, "optim": "adamw_torch_fused"}


def ask(**values):
    return request.parse(BASE | values)


# --- the catalogue


def test_every_offer_has_its_price_and_mark():
    offered = servers.offers()
    assert len({s.id for s in offered.servers}) == len(offered.servers) >= 26
    assert all(s.amount > 0 and s.currency in ("USD", "RUB") and s.vat in ("excl", "incl") for s in offered.servers)


def test_a_user_s_catalogue_replaces_adds_and_brings_rates(tmp_path):
    file = tmp_path / "servers.yaml"
    file.write_text(
        "rates: {RUB: {per_usd: 80, date: 2026-01-15}}\n"
        "servers:\n"
        "  - {id: a-1xH100, gpus: 1, card: H100, amount: 1000, currency: USD, period: month}\n"
        "  - {id: mine, gpus: 2, card: L40S, amount: 100, currency: RUB, period: hour}\n"
    )
    offered = servers.offers(file)
    by_id = {s.id: s for s in offered.servers}
    assert by_id["a-1xH100"].amount == 1000
    assert by_id["mine"].gpus == 2
    assert offered.convert(100, "RUB", "USD") == (1.25, "2026-01-15")
    assert offered.convert(100, "RUB", "EUR") is None


@pytest.mark.parametrize(
    "text",
    [
        "servers: [{id: x, gpus: 0, card: H100, amount: 1, period: hour}]",
        "servers: [{id: x, gpus: 1, card: H900, amount: 1, period: hour}]",
        "servers: [{id: x, gpus: 1, card: H100, amount: .nan, period: hour}]",
        "servers: [{id: x, gpus: 1, card: H100, amount: 1, period: day}]",
        "servers: [{id: x, gpus: 1, card: H100, amount: 1, period: hour, colour: red}]",
        "servers: [{gpus: 1}]",
        "rates: {EUR: 0}",
        "servers: [",
        "- 1",
    ],
)
def test_a_wrong_catalogue_is_one_clear_error(tmp_path, text):
    file = tmp_path / "servers.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        servers.offers(file)
    assert str(file) in (error.value.where or "")


def test_a_month_is_due_whole_and_shared_by_hours():
    offered = servers.offers()
    _n, _card, server = servers.find(offered, "a-8xH100")
    cost = servers.cost(server, 11.25, offered.hours_per_month)
    assert cost["due"] == 16900
    assert cost["amount"] == pytest.approx(260, abs=1)
    assert cost["share_of_lease"] == pytest.approx(0.0154, abs=1e-4)
    assert servers.cost(server, 800, offered.hours_per_month)["due"] == 2 * 16900


def test_a_server_names_its_cards():
    result = plan(ask(server="8xH200"), advise=False)
    assert (result.request.num_gpus, result.context.card.id) == (8, "H200-SXM")
    assert plan(ask(server="b-L4"), advise=False).context.server.amount == 0.74
    with pytest.raises(UsageError):
        plan(ask(server="8xH900"))


def test_cards_alone_are_not_held_against_a_server_that_was_not_named():
    asked = {
        "model": "meta-llama/Llama-3.1-70B",
        "method": "full",
        "num_gpus": 8,
        "sharding": "fsdp2",
        "checkpoints_kept": 100,
    }
    assert plan(ask(**asked, gpu="B300"), advise=False).problems == []
    named = {k: v for k, v in asked.items() if k != "num_gpus"}
    result = plan(ask(**named, server="8xB300"), advise=False)
    assert result.problems == ["disk"]
    assert {m["server"] for m in plan(ask(server="1xH100", rows=10), advise=False).money} == {
        "a-1xH100",
        "b-H100",
        "c-H100",
    }


# --- time


def test_flops_of_a_token():
    full = ask(method="full", gradient_checkpointing=False)
    n = full.shape.active_parameters
    attention = 2 * 2048 * 4096 * 32
    assert speed.flops_per_token(full) == 6 * n + 3 * attention
    lora = ask(gradient_checkpointing=False)
    assert speed.flops_per_token(lora) == 4 * n + 3 * attention
    repeated = speed.flops_per_token(ask()) - speed.flops_per_token(lora)
    assert repeated == 2 * n + attention - 2 * 128256 * 4096


def test_cards_gpus_and_links_are_ordered():
    def rate(**values):
        return plan(ask(**values), advise=False).speed.total

    assert rate(gpu="L4") < rate(gpu="A100") < rate(gpu="H100") < rate(gpu="B200")
    assert rate(gpu="H100") < rate(gpu="H100", num_gpus=8, sharding="ddp") <= 8 * rate(gpu="H100")
    nvlink = rate(gpu="H100", num_gpus=8, sharding="fsdp2", method="full", bf16_master="bf16")
    pcie = rate(gpu="RTX PRO 6000", num_gpus=8, sharding="fsdp2", method="full", bf16_master="bf16")
    assert pcie < 0.5 * nvlink
    assert rate(gpu="H100", num_gpus=4, sharding="pipeline") <= rate(gpu="H100") * 1.01
    assert rate(gpu="H100", method="full", num_gpus=8, sharding="fsdp2", cpu_offload=True) < nvlink


def test_time_and_money_follow_from_the_speed():
    result = plan(ask(server="b-A100", train_tokens=1e8), advise=False)
    time = result.time()
    assert time["hours"] == pytest.approx(1e8 / time["tokens_per_s_total"] / 3600, rel=1e-3)
    assert time["low"] < time["hours"] < time["high"]
    assert result.money[0]["amount"] == pytest.approx(2.24 * result.hours, abs=0.01)


# --- disk and host


def test_a_checkpoint_holds_weights_and_states_and_no_gradients():
    assert storage.checkpoint_bytes(ask(method="full")) == 12 * 8_030_261_248
    assert storage.checkpoint_bytes(ask(method="full", bf16_master="bf16")) == 6 * 8_030_261_248
    assert storage.checkpoint_bytes(ask()) == 12 * 41_943_040
    assert storage.checkpoint_bytes(ask(method="full", sharding="zero3", num_gpus=8)) == 14 * 8_030_261_248


def test_drives_one_several_or_too_few():
    made = plan(ask(method="full", server="a-8xH100", checkpoints_kept=3), advise=False).storage
    assert storage.spread(made, (3.84,)) == {
        "fits": True, "drives": 1, "per_drive": 5, "reason": None, "each": [5],
    }  # fmt: skip
    two = storage.spread(made, (0.35, 0.35))
    assert two["fits"] and two["drives"] == 2
    assert storage.spread(made, (0.2,))["fits"] is False
    assert storage.spread(made, ()) is None


def test_offload_and_loading_take_host_memory():
    common = {"method": "full", "num_gpus": 8, "sharding": "fsdp2"}
    plain, offloaded = (plan(ask(**common, cpu_offload=on), advise=False).storage for on in (False, True))
    assert offloaded.host_run - plain.host_run > 12 * 8.03e9
    assert plain.host_load > 4 * 8.03e9


# --- the choice, and what to change


@pytest.mark.parametrize(
    ("values", "sharding"),
    [
        ({"gpu": "H100"}, "none"),
        ({"gpu": "H100", "num_gpus": 4}, "ddp"),
        ({"model": "meta-llama/Llama-3.1-70B", "gpu": "H100", "num_gpus": 8}, "fsdp2"),
        ({"method": "full", "gpu": "H100", "num_gpus": 4}, "fsdp2"),
    ],
)
def test_auto_takes_the_fastest_that_fits_and_says_why(values, sharding):
    result = plan(ask(**values), advise=False)
    assert result.request.sharding == sharding
    assert result.verdict == "fits"
    assert result.sharding_reason


def test_auto_offloads_when_nothing_else_fits_and_gives_up_with_a_reason():
    chosen, _why = choose.sharding(
        r := ask(model="meta-llama/Llama-3.1-70B", method="full", gpu="H200", num_gpus=8), context(r)
    )
    assert chosen.sharding == "fsdp2"
    assert chosen.cpu_offload
    none = plan(ask(model="meta-llama/Llama-3.1-405B", method="full", gpu="RTX4090", num_gpus=2), advise=False)
    assert none.verdict == "no"
    assert none.sharding_reason


def test_advice_makes_it_fit_and_each_line_is_a_plan():
    result = plan(
        ask(gpu="RTX4090", loss="full", per_device_train_batch_size=8, gradient_accumulation_steps=2, train_tokens=1e8)
    )
    assert result.verdict == "no"
    assert result.advice
    assert result.advice[0]["verdict"] == "fits"
    for row in result.advice:
        if "server" in row["change"]:
            continue
        again = evaluate(result.request.replace(**_fields(row["change"], result.request)), result.context)
        assert round(again.memory.peak.total / 1e9, 2) == row["allocated_gb"]
        assert again.verdict == row["verdict"]


def _fields(change, r):
    if change.get("method") == "qlora":
        return change | {"lora_dtype": "bf16"}
    return change


def test_advice_keeps_the_global_batch():
    result = plan(ask(gpu="L4", per_device_train_batch_size=8, gradient_accumulation_steps=2, loss="full"))
    rows = [row["change"] for row in result.advice if "per_device_train_batch_size" in row["change"]]
    assert rows
    assert all(c["per_device_train_batch_size"] * c["gradient_accumulation_steps"] == 16 for c in rows)


def test_a_shorter_length_says_what_it_cuts():
    result = plan(
        ask(
            gpu="L4",
            max_length=8192,
            per_device_train_batch_size=4,
            length_histogram=[[500, 98], [6000, 2]],
            loss="full",
        )
    )
    row = next(row for row in result.advice if "max_length" in row["change"])
    assert "2.0" in row["text"]


def test_everything_marks_the_cheapest_and_the_fastest():
    rows = everything.compare(ask(train_tokens=1e8))
    for method in ("full", "lora", "qlora"):
        fitting = [row for row in rows if row.method == method and row.result.verdict == "fits"]
        fastest = [row for row in fitting if row.fastest]
        assert len(fastest) == 1
        assert fastest[0].result.speed.total == max(row.result.speed.total for row in fitting)
        cheapest = [row for row in fitting if row.cheapest]
        dollars = [row for row in fitting if row.server.currency == "USD"]
        assert cheapest[0].cost["amount"] == min(row.cost["amount"] for row in dollars)
    assert any(row.method == "full" and row.result.verdict == "no" for row in rows)
