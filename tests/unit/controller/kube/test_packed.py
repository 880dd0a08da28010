import json
from typing import Any

from controller.kube.packed import Packer


def a_document(number: int, **more: object) -> dict[str, Any]:
    stages = [{"name": f"stage-{i}", "replicas": {"min": i, "max": 8}, "pool": "spot"} for i in range(20)]
    return {"metadata": {"name": f"captions-{number}", "uid": f"{number * 7919:x}"}, "spec": {"stages": stages}, **more}


def test_documents_that_are_alike_take_little_and_come_back_as_they_were() -> None:
    packer = Packer()
    documents = [{}, *(a_document(number) for number in range(20))]
    packed = [packer.pack(each) for each in documents]
    assert [each.document() for each in packed] == documents
    assert len(packed[-1].data) < len(json.dumps(documents[-1])) / 10


def test_documents_with_a_new_part_take_little_once_one_was_packed() -> None:
    packer = Packer()
    packer.pack(a_document(0))
    status = {"conditions": [{"type": f"Condition{i}", "message": f"{i * 7919} of {i * 104729}"} for i in range(40)]}
    first, then = packer.pack(a_document(1, status=status)), packer.pack(a_document(2, status=status))
    assert len(then.data) < len(first.data) / 5
    assert first.document()["status"] == then.document()["status"] == status
