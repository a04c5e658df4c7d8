"""`clutch open --phone` and `clutch devices`: pair a phone by a QR code, list what is signed in, and sign it out."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clutch.cli.output import answering, at, command_for, gateway, home_of, now, print_object, print_text, say
from clutch.core.text.format import duration
from clutch.errors import InvalidInput, MissingExtra, extra
from clutch.surfaces.discovery import CONFIG_FILE
from clutch.surfaces.listen import HERE, GatewayReach, phone_url

UNROUTED = (
    "192.0.2.1",
    9,
)  #: an address of documentation; a datagram socket that is connected to it sends nothing


def open_phone(state: Path | None, *, url: str | None, as_json: bool) -> None:
    """Print a one-time link for a phone, and its QR code."""
    with answering("open", as_json=as_json):
        client, here = gateway(state, is_new_work=True), _address_here()
        said = client.get("/v1/devices")["reach"]
        reach = GatewayReach(tuple(said["hosts"]), tuple(said["addresses"]), said["port"])
        base = phone_url(reach, url, here)
        if base is None:
            say(_ways(state, here or "192.168.1.20"))
            raise InvalidInput("gateway", _missing(state, reach))
        made = client.post("/v1/browser/code", {"phone": True})
        link, lasts_s = f"{base}/#{made['code']}", made["expiresInSeconds"]
        if as_json:
            return print_object("open", {"url": link, "expiresInSeconds": lasts_s, "opened": False})
        try:
            print_text(qr_code(link))
        except MissingExtra as error:
            say(f"{error}. Without it, type the link on the phone.")
        say(f"Scan with the phone's camera. One-time link, valid for {duration(lasts_s)}:")
        print_text(link)
        if base.startswith("http:"):
            say("Without TLS: use it only in a network that you trust. Notifications need https.")


def qr_code(link: str) -> str:
    """Return the QR code of a link, drawn with half blocks. Raises MissingExtra."""
    with extra("phone", "the QR code"):
        import segno
    drawn = io.StringIO()
    segno.make_qr(link, error="l").terminal(drawn, compact=True)
    return drawn.getvalue().rstrip("\n")


def _address_here() -> str | None:
    """Return the address of this machine in its network; None without one. Nothing is sent."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(UNROUTED)
        return str(one.getsockname()[0])
    return None


def _missing(state: Path | None, reach: GatewayReach) -> str:
    from clutch.config import load

    lacking = [f"gateway.host (now {reach.addresses[0]})"]
    if not load.load(home_of(state)).settings.listening.allow_remote:
        lacking.append("gateway.allowRemote (now false)")
    lacking.append("gateway.allowedHosts (now empty)")
    return f"no phone can reach it; missing settings: {', '.join(lacking)}"


def _ways(state: Path | None, here: str) -> str:
    """Return what to set in each of three situations."""
    wanted = {"host": "0.0.0.0", "allowRemote": True, "allowedHosts": [here]}  # noqa: S104 - proposed to the user
    file, restart = home_of(state) / CONFIG_FILE, command_for(state, "stop")
    public = command_for(state, "open", "--phone", "--url", "https://clutch.example.org:8443")
    return f"""This gateway listens on {HERE} only. Three ways to reach it from a phone:

1. In a network that you trust, without encryption. Write to {file}:
     {{"gateway": {json.dumps(wanted)}}}
2. Through a tunnel or a TLS proxy to this computer (needed for notifications). Name its address:
     {{"gateway": {{"allowedHosts": ["clutch.example.org"]}}}}
3. As 2, at another port than 443: also name the whole address:
     {public}

After a change: `{restart}`, then `{command_for(state, "open", "--phone")}`.
"""


# --------------------------------------------------------------------------------------------------
# `clutch devices`


def listed(state: Path | None, *, as_json: bool) -> None:
    with answering("devices", as_json=as_json):
        found = gateway(state).get("/v1/devices")["devices"]
        if as_json:
            return print_object("devices", {"devices": found})
        print_text(_table(found))
        if found:
            say(f"{command_for(state, 'devices', 'revoke', found[0]['id'])}  # signs a device out")
        else:
            say(f"No browser or phone is signed in: {command_for(state, 'open')}, or with --phone.")


def _table(found: Sequence[Mapping[str, Any]]) -> str:
    if not found:
        return "0 devices"
    rows = [("ID", "DEVICE", "PAIRED", "LAST SEEN", "EXPIRES IN")]
    for one in found:
        name = f"{one['name']} (phone)" if one["isPhone"] else one["name"]
        rows.append((one["id"], name, _ago(one["pairedAt"]), _ago(one["seenAt"]), _left(one["expiresAt"])))
    wide = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(cells) for cell, cells in zip(row, wide, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _ago(moment: str) -> str:
    return f"{duration(max(0.0, now() - (at(moment) or 0.0)))} ago"


def _left(moment: str) -> str:
    return duration(max(0.0, (at(moment) or 0.0) - now()))


def revoke(state: Path | None, device: str | None, *, as_json: bool) -> None:
    with answering("devices", as_json=as_json):
        if device is None:
            raise InvalidInput(
                "ID", f"must name a device of the list that `{command_for(state, 'devices')}` prints"
            )
        said = gateway(state).post(f"/v1/devices/{quote(device, safe='')}/revoke")
        if as_json:
            return print_object("devices", said)
        print_text(f"revoked: {said['id']}")
