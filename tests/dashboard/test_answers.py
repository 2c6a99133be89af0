"""Answers are worked out once for a version of the folder, and never shown after it."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serving import Writer
from starlette.testclient import TestClient

from fedapa.dashboard import views
from fedapa.dashboard.answers import Answers
from fedapa.dashboard.board import Board
from fedapa.dashboard.server import make_app
from fedapa.errors import InputError
from fedapa.store import run_db


def test_many_who_ask_at_once_are_answered_by_one_calculation() -> None:
    answers, made, go = Answers(), list[int](), threading.Event()

    def make() -> bytes:
        made.append(1)
        go.wait(10)
        return b"answer"

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(answers.get, 1, "overview", make) for _ in range(8)]
        go.set()
        assert {one.result(10) for one in asked} == {b"answer"}
    assert len(made) == 1


def test_another_version_or_question_is_another_answer() -> None:
    answers = Answers(most=2)
    assert answers.get(1, "a", lambda: b"1") == b"1"
    assert answers.get(2, "a", lambda: b"2") == b"2"
    assert answers.get(2, "b", lambda: b"3") == b"3"
    assert answers.get(1, "a", lambda: b"late") == b"late"  # looked up just before the change
    assert answers.get(2, "a", lambda: b"wrong") == b"2"
    assert answers.get(2, "c", lambda: b"4") == b"4"
    assert answers.get(2, "a", lambda: b"again") == b"again"  # only so many are kept


def test_an_error_is_told_and_not_kept() -> None:
    def fail() -> bytes:
        raise InputError("no such run")

    answers = Answers()
    with pytest.raises(InputError, match="no such run"):
        answers.get(1, "a", fail)
    assert answers.get(1, "a", lambda: b"fine") == b"fine"


def test_pages_show_a_new_round_and_work_an_old_one_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, read = Writer(tmp_path / "a", 3, 10), list[str]()
    writer.play(2)
    real = views.clients
    monkeypatch.setattr(views, "clients", lambda now, name: read.append(name) or real(now, name))
    monkeypatch.setattr("fedapa.dashboard.board.FRESH", 0.0)
    monkeypatch.setattr("fedapa.dashboard.board.TICK", 0.0)  # a file that was just written is looked at once, too
    monkeypatch.setattr(Board.look, "__defaults__", (0.0,))
    with TestClient(make_app(tmp_path), base_url="http://127.0.0.1") as client:
        rounds = [client.get("/api/clients?run=a").json()["round"] for _ in range(3)]
        writer.play()
        rounds.append(client.get("/api/clients?run=a").json()["round"])
    writer.close()
    assert (rounds, read) == ([2, 2, 2, 3], ["a", "a"])


def test_nobody_waits_for_another_one_who_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path / "a", 3, 10)
    writer.play()
    board = Board(tmp_path)
    first = board.look()
    board._lock.acquire()
    assert board.look(0.5) is first
    board._lock.release()
    writer.close()


def test_one_client_is_found_by_keys(tmp_path: Path) -> None:
    """Not by reading the rows of all clients, of which there may be millions."""
    writer = Writer(tmp_path / "a", 5, 10)
    writer.play(4)
    with run_db.reading(tmp_path / "a" / "run.db") as db:
        asked: list[str] = []
        db.set_trace_callback(asked.append)
        course = run_db.client_course(db, 3)
        db.set_trace_callback(None)
        plans = [row[3] for query in asked if " client_" in query for row in explained(db, query)]
    writer.close()
    assert [row[:2] for row in course] == [(t, 1) for t in range(4)]
    assert plans
    assert not [plan for plan in plans if plan.startswith("SCAN client_")]


def explained(db: sqlite3.Connection, query: str) -> list[tuple[int, int, int, str]]:
    return db.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
