"""`cesar explain`: one round that a person can follow."""

from support.commands import call, read


def test_explain():
    result = read("explain")
    assert all(row["largest_error"] < 1e-6 for row in result["learned"])
    assert len(result["glimpse"]["words"]) == 4
    assert "masked word" in call("explain")
