"""Agno: a team whose leader delegates to one member, `AsyncSqliteDb`, `checkpoint="tool-batch"`, telemetry off.

Delegations of one answer run at once and the leader waits for all. Resume: `acontinue_run` with the id of the open run;
where the database holds no open run of the session, the task is given to the team again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from agno.agent import Agent
from agno.db.sqlite import AsyncSqliteDb
from agno.models.openai import OpenAIChat
from agno.run import RunStatus
from agno.team import Team

from benchmarks import w_job
from benchmarks.peers import job
from benchmarks.peers.worker import Job, serve

_SYSTEM: Final = "Do what you are asked with the tools you have, then answer briefly."


class AgnoAdapter:
    def __init__(self, known: Job, db: AsyncSqliteDb) -> None:
        self._known, self._db, self._work = known, db, known.tools()

    def _model(self) -> OpenAIChat:
        return OpenAIChat(id=w_job.MODEL, base_url=self._known.url, api_key="none")

    def _surveyor(self, **options: Any) -> Agent:
        work = self._work

        async def look_up(item: int) -> str:
            """What is known of an item."""
            return work.look_up(item)

        async def record(item: int, text: str) -> str:
            """Keep a note on an item."""
            return work.record(item, text)

        return Agent(
            id="surveyor", name="surveyor", role="Surveys one item.", model=self._model(), instructions=_SYSTEM,
            tools=[look_up, record], db=self._db, checkpoint="tool-batch", telemetry=False, **options,
        )  # fmt: skip

    def _team(self) -> Team:
        return Team(
            id="team", members=[self._surveyor()], model=self._model(), instructions=_SYSTEM, db=self._db,
            checkpoint="tool-batch", telemetry=False,
        )  # fmt: skip

    async def fan_out(self, session: str, count: int) -> str:
        return str((await self._team().arun(w_job.fan_out(count), session_id=session)).content)

    async def resume(self, session: str, count: int) -> str:
        team = self._team()
        known = await team.aget_session(session_id=session)
        runs = [run for run in (known.runs if known else None) or () if run.parent_run_id is None]
        if runs and runs[-1].status == RunStatus.running:
            ended = await team.acontinue_run(run_id=runs[-1].run_id, session_id=session)
            return str(ended.content)
        return await self.fan_out(session, count)

    async def walk(self, session: str, steps: int) -> str:
        return str((await self._surveyor().arun(job.walk(steps), session_id=session)).content)


@asynccontextmanager
async def opened(known: Job) -> AsyncIterator[AgnoAdapter]:
    db = AsyncSqliteDb(db_file=str(known.state / "agno.db"))
    yield AgnoAdapter(known, db)


if __name__ == "__main__":
    serve(opened)
