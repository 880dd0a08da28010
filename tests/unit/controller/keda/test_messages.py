"""The bytes are those that protobuf 7.36 writes with KEDA's own .proto file."""

import pytest

from controller.keda.messages import (
    ScaledObjectRef,
    is_active,
    metric_spec,
    metric_value,
    read_metrics_request,
    read_scaled_object,
)

REF = (
    "0a07656e636f64657212067370656563681a140a08706970656c696e65120863617074696f6e731a100a0573746167651207656e636f646572"
)
ENCODER = ScaledObjectRef(name="encoder", namespace="speech", metadata={"pipeline": "captions", "stage": "encoder"})


def test_requests_are_read_as_protobuf_writes_them() -> None:
    assert read_scaled_object(bytes.fromhex(REF)) == ENCODER
    request = read_metrics_request(bytes.fromhex(f"0a39{REF}120f736c756963652d7265706c69636173"))
    assert (request.scaled_object, request.metric) == (ENCODER, "sluice-replicas")


def test_a_missing_field_is_empty_and_an_unknown_one_is_skipped() -> None:
    assert read_scaled_object(b"") == ScaledObjectRef(name="", namespace="", metadata={})
    unknown = bytes.fromhex("2005" + "29" + "00" * 8 + "35" + "00" * 4 + "3a0161")
    assert read_scaled_object(unknown + bytes.fromhex(REF)) == ENCODER


@pytest.mark.parametrize("data", ["0a", "0a05", "0aff", "29", "0b", "ff" * 11], ids=str)
def test_a_damaged_message_is_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r"byte|wire type"):
        read_scaled_object(bytes.fromhex(data))


def test_answers_are_written_as_protobuf_writes_them() -> None:
    assert (is_active(True).hex(), is_active(False).hex()) == ("0801", "")
    assert metric_spec("sluice-replicas", 1.0).hex() == "0a1a0a0f736c756963652d7265706c6963617319000000000000f03f"
    assert metric_value("sluice-replicas", 21.0).hex() == "0a1a0a0f736c756963652d7265706c69636173190000000000003540"


def test_lengths_above_127_take_two_bytes() -> None:
    assert metric_value("m" * 200, 1.0)[:6].hex() == "0ad4010ac801"
