"""A FastAPI application with background agents: start a task, read its status, stream its text to a browser.

    pip install fastapi
    uvicorn fastapi_app:app --workers 2 --timeout-graceful-shutdown 5

    open http://127.0.0.1:8000 in a browser, or:
    curl -X POST 127.0.0.1:8000/tasks -H 'content-type: application/json' -d '{"prompt": "Survey the folder"}'
    curl 127.0.0.1:8000/tasks/t_2        # {"id": "t_2", "status": "running", "doing_now": "thinking · step 1", ...}
    curl -N 127.0.0.1:8000/tasks/t_2/stream

The first worker that opens the state directory does the work. The other one is its client, with the same methods, so
every request can go to either worker. Stop it with Ctrl-C and start it again: unfinished tasks resume. A stream lasts
as long as its task; the timeout ends open streams (uvicorn logs them as cancelled), so that a stop takes no longer.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel

from clutch import Clutch, ClutchError, IdempotencyConflict, InvalidInput, NotFound, SpawnRefused, Task

STATUS = {NotFound: 404, IdempotencyConflict: 409, InvalidInput: 422, SpawnRefused: 429}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # The demo model answers. A real model: Clutch("clutch-state", model="anthropic:claude-sonnet-4-5")
    async with Clutch("clutch-state") as clutch:
        print(
            f"worker {os.getpid()}: {'client of the first worker' if clutch.is_client else 'does the work'}"
        )
        app.state.clutch = clutch
        yield
    # Leaving the block stops running tasks at their next step; the next start resumes them.


app = FastAPI(title="Background agents", lifespan=lifespan)


def opened(request: Request) -> Clutch:
    clutch: Clutch = request.app.state.clutch
    return clutch


async def found(task_id: str, clutch: Annotated[Clutch, Depends(opened)]) -> Task:
    return await clutch.get(task_id)


@app.exception_handler(ClutchError)
async def refused(request: Request, error: ClutchError) -> JSONResponse:
    """Every error of Clutch says what is wrong, the rule and the fix."""
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 503)
    return JSONResponse({"error": str(error)}, status)


class NewTask(BaseModel):
    prompt: str
    label: str | None = None


@app.post("/tasks", status_code=202)
async def create(
    new: NewTask,
    clutch: Annotated[Clutch, Depends(opened)],
    idempotency_key: Annotated[str | None, Header()] = None,
) -> dict[str, str]:
    """Start a task. It is on disk when this returns; a repeated Idempotency-Key returns the same task."""
    task = await clutch.spawn(new.prompt, label=new.label, idempotency_key=idempotency_key)
    return {"id": task.id, "label": task.label}


@app.get("/tasks/{task_id}")
async def read(task: Annotated[Task, Depends(found)]) -> dict[str, Any]:
    info = await task.info()
    status = {"id": task.id, "label": task.label, "status": info.status, "doing_now": info.doing_now}
    return status if info.outcome is None else status | {"text": (await task).text}


@app.get("/tasks/{task_id}/stream")
async def stream(task: Annotated[Task, Depends(found)]) -> StreamingResponse:
    """Server-Sent Events: `text` for each piece as the model writes it, then one `done` with the whole result."""

    async def events() -> AsyncIterator[str]:
        async for text in task.stream():
            yield f"event: text\ndata: {json.dumps(text)}\n\n"
        result = await task
        yield f"event: done\ndata: {json.dumps({'outcome': result.outcome, 'text': result.text})}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    return """<form><input name=prompt value="Survey the folder"> <button>Start</button></form><pre></pre><script>
    const output = document.querySelector("pre"), form = document.querySelector("form");
    form.onsubmit = async (submitted) => {
      submitted.preventDefault();
      const body = JSON.stringify({prompt: form.prompt.value}), headers = {"content-type": "application/json"};
      const task = await (await fetch("/tasks", {method: "POST", headers, body})).json();
      const source = new EventSource(`/tasks/${task.id}/stream`);
      source.addEventListener("text", (event) => output.append(JSON.parse(event.data)));
      source.addEventListener("done", (event) => {
        source.close();
        output.textContent = JSON.parse(event.data).text;
      });
    };
    </script>"""
