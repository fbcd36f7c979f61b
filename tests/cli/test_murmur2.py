"""Tests that the partition of a key is the one that Kafka's default partitioner chooses."""

from __future__ import annotations

import pytest

from kpybroker.cli.murmur2 import murmur2, partition_of

# the key in hexadecimal, the hash, and the partition (of seven partitions): computed by
# org.apache.kafka.common.utils.Utils.murmur2 and toPositive of Kafka 4.3.1 fmt: off
KAFKAS = [
    ("", 275646681, 2),
    ("61", 2731586172, 5),
    ("6162", 316155434, 0),
    ("616263", 479470107, 4),
    ("61626364", 2971317748, 5),
    ("6162636465", 461995741, 4),
    ("3231", 3321034988, 3),
    ("666f6f626172", 3504634814, 0),
    ("612d6c6974746c652d6269742d6c6f6e672d737472696e67", 3308985760, 1),
    ("612d6c6974746c652d6269742d6c6f6e6765722d737472696e67", 2808662467, 0),
    ("6c6b6a683233346c68396669756839307932336f697568736166756a6861646f66323239706872396831396838396838", 4236069325, 3),
    ("4772c3bcc39f65", 1190824359, 4),
    ("e697a5e69cace8aa9e", 1431860170, 6),
    ("f09f9880", 131881617, 0),
    ("00", 375494588, 0),
    ("6b65792d30", 29210041, 0),
    ("6b65792d31", 193331640, 5),
    ("6b65792d32", 852269702, 4),
    ("6b65792d33", 2455831195, 4),
    ("74686520717569636b2062726f776e20666f78", 2136040129, 6),
    ("", 275646681, 2),
    ("bf5903", 2461354228, 2),
    ("58cb352d441a", 2807779344, 4),
    ("e01ca09c15d9287dca", 4011865671, 0),
    ("9cf63a76470989d33458d772", 806154669, 5),
    ("528c746d8f469db22fd7a8c017c21b", 2075091454, 2),
    ("41e48258c9ca8cc2142dced654682038ce7c", 1450475445, 6),
    ("8340a0eb628745bb488dd4e23a116d51d118d53838", 2832913362, 4),
    ("93dd45e2356d390638d180706eb91751c68c9364805dcea8", 3630847004, 6),
    ("83c1a6fed9813baa5b09aae1d2863033d6727c48cd562daae57b71", 3004706254, 2),
    ("ff46660f03d4f397e268517d888508835704877f1cdfc313fb52b58daaf1", 144621675, 2),
    ("4c8f65564884ddae848e42d6ea4e6373577a4c79daedc35afa67edb950a3454d1b", 1866788403, 4),
    ("9f711c20b037401dc6af8859c9af139777c33bb1cfe25aa0c776d833c60739b9263dbb08", 3725920494, 0),
    ("9de87a5255fa7b318b0619296b4f7a3b0280a0fe3065d709cdb1305752701daf488929f744134b", 233997589, 0),
    ("dd739de4c61a5dd5225883c4622d169e501f6dcd6ab38ca6ef99a04d33cc1a46e20878c5a866eab33fdc", 3074253726, 3),
    ("69d6ccff975ba8c10954c67995776b1c360e7417230b20c0c79aa0db6ee217d001027d8f8b08e14ca01b437e82", 2657151440, 4),
    ("57d41bd60b9db104ec03d52e49c2e6901f0f3f073a0f319ff175332fc068b2cf11f6ffe26bf6ae6176e2bb286c8180c8", 2997835549, 0),
]
# fmt: on


@pytest.mark.parametrize(("key", "hashed", "partition"), KAFKAS)
def test_keys_hash_as_in_kafka(key: str, hashed: int, partition: int) -> None:
    data = bytes.fromhex(key)
    assert murmur2(data) == hashed
    assert partition_of(data, 7) == partition


def test_every_partition_number_occurs() -> None:
    assert {partition_of(f"key-{n}".encode(), 12) for n in range(400)} == set(range(12))
    assert partition_of(b"anything", 1) == 0
