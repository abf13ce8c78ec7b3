"""An operator written with kopf that serves admission webhooks: Greetings get a mood, curses are refused, and shouting
is warned about. The certificate, its key and the port come from the environment."""

import os

import kopf

GREETINGS = ("story.mainstay.local", "v1", "greetings")


@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer(
        addr="127.0.0.1",
        host="127.0.0.1",
        port=int(os.environ["WEBHOOK_PORT"]),
        certfile=os.environ["WEBHOOK_CERTIFICATE"],
        pkeyfile=os.environ["WEBHOOK_KEY"],
    )
    settings.admission.managed = "story.mainstay.local"


@kopf.on.mutate(*GREETINGS, operation="CREATE")
def give_mood(spec, patch, **_):
    if "mood" not in spec:
        patch.spec["mood"] = "kind"


@kopf.on.validate(*GREETINGS)
def refuse_curses(spec, old, warnings, userinfo, dryrun, **_):
    text = spec.get("text", "")
    if "curse" in text:
        raise kopf.AdmissionError(f"{userinfo['username']} must not curse", code=422)
    if text.isupper():
        warnings.append("that is loud")
    if old is not None and old.get("spec", {}).get("mood") != spec.get("mood"):
        raise kopf.AdmissionError("a mood stays as it is", code=403)
