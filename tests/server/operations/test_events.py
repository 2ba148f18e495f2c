"""Events and comments over HTTP: in pages, from both ends."""

from __future__ import annotations

from tests.fixtures.http_server import Client, all_of


def test_pages_of_events_hold_each_once_while_others_append(client: Client) -> None:
    path = client.new("pages")
    for number in range(10):
        client.post(f"{path}/thoughts", {"text": f"thought {number}"})
    first = client.get(f"{path}/events", kind="thought", limit=4)
    client.post(f"{path}/thoughts", {"text": "thought 10"})
    rest = all_of(client, f"{path}/events", kind="thought", limit=4, after=first["next"])
    texts = [one["data"]["text"] for one in [*first["items"], *rest]]
    assert texts == [f"thought {number}" for number in range(11)]


def test_events_newest_first_are_the_reverse_over_pages(client: Client) -> None:
    path = client.new("newest")
    for number in range(7):
        client.post(f"{path}/thoughts", {"text": str(number)})
    client.post(f"{path}/comments", {"text": "beside", "by": "ann"})
    forwards = all_of(client, f"{path}/events", limit=3)
    assert [one["kind"] for one in forwards][-1] == "comment"
    backwards = all_of(client, f"{path}/events", limit=3, newest="true")
    assert backwards == forwards[::-1]


def test_comment_is_stored_with_its_text_and_author(client: Client) -> None:
    path = client.new("commented")
    client.post(f"{path}/comments", {"text": "leave the grammar alone", "by": "ann"})
    (found,) = client.get(f"{path}/comments")["items"]
    assert (found["data"]["text"], found["actor"]) == ("leave the grammar alone", "ann")
