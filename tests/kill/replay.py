"""`python -m tests.kill.replay SEED CASE`: one case again, with all that its starts said."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.kill.campaign import Campaign, campaign_server
from tests.kill.cases import case_named


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or not arguments[0].isdigit():
        print("usage: python -m tests.kill.replay SEED CASE, such as: 1 gan/random-3", file=sys.stderr)
        return 2
    case = case_named(int(arguments[0]), arguments[1])
    print(case)
    with tempfile.TemporaryDirectory(prefix="kill-") as folder, campaign_server() as server:
        campaign = Campaign(server, Path(folder))
        verdict = campaign.run(case)
        for number, said in enumerate(campaign.said):
            print(f"--- start {number}\n{said.rstrip()}")
        print(verdict)
    return 1 if verdict.complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
