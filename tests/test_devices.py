import os

import pytest
import torch

from cyctr import devices
from cyctr.devices import choose_device, episodes_together, free_memory, half_pays
from cyctr.errors import ConfigError

CPU = torch.device("cpu")


def test_a_device_is_chosen_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:0"):
        with pytest.raises(ConfigError, match=f"device is '{name}', but torch sees no CUDA here; use 'cpu'"):
            choose_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto").type == "cuda"
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="device is 'cuda:2'; expected cuda:0 to cuda:1"):
        choose_device("cuda:2")


@pytest.mark.parametrize("name", ["", "gpu", "mps", "meta", "cuda:x", "cuda:-1"])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(ConfigError, match=f"device is {name!r}; expected auto, cpu, cuda or cuda:N"):
        choose_device(name)


@pytest.mark.parametrize(("gib", "shots", "together"), [(139, 1, 64), (139, 5, 23), (24, 1, 20), (24, 5, 4), (1, 10, 1)])
def test_a_gpu_answers_as_many_episodes_at_a_time_as_its_memory_suits(gib, shots, together, monkeypatch):
    monkeypatch.setattr(devices, "free_memory", lambda device: gib * 2**30)
    assert episodes_together(torch.device("cuda"), shots) == together
    assert episodes_together(torch.device("cpu"), shots) == 1


def test_larger_inputs_and_more_classes_leave_room_for_fewer(monkeypatch):
    monkeypatch.setattr(devices, "free_memory", lambda device: 24 * 2**30)
    gpu = torch.device("cuda")
    assert [episodes_together(gpu, 1, area=area) for area in (0.3, 1, 2, 4, 16)] == [20, 20, 5, 1, 1]
    assert [episodes_together(gpu, 1, classes) for classes in (1, 10, 100)] == [20, 17, 7]


def test_free_memory_is_some_of_what_the_machine_has():
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_memory(CPU) <= whole


def test_what_torch_keeps_in_reserve_on_a_gpu_is_free(monkeypatch):
    for name, value in {"mem_get_info": (100, 1000), "memory_reserved": 70, "memory_allocated": 40}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert free_memory(torch.device("cuda", 0)) == 130


def test_free_memory_is_guessed_where_the_system_does_not_say(monkeypatch):
    def unknown(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert free_memory(CPU) > 2**30


@pytest.mark.parametrize(
    ("able", "pays"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True),
        ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, False),
        ({"architecture": "aarch64"}, False),
    ],
)
def test_half_precision_pays_on_a_gpu_and_on_a_cpu_that_has_it(able, pays, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    assert half_pays(CPU) == pays
    assert half_pays(torch.device("cuda"))


def test_a_torch_that_does_not_say_what_a_cpu_can_do_computes_in_whole(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not half_pays(CPU)
