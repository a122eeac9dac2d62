"""Command line of the benchmarks.

python -m benchmarks codec [--traces DIR] [--codec NAME …] [--steps N] [--threads N]
python -m benchmarks kernels [--sizes 1M,16M,128M] [--densities 0.01] [--full]

With --json a list of records instead of tables. Results go to stdout, progress to stderr.
With --check the exit code is 1 when a promise is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from .report import print_json, print_tables, progress, warn_if_busy


def main() -> int:
    args = _parser().parse_args()
    warn_if_busy()
    return int(args.main(args))


def _codec(args: argparse.Namespace) -> int:
    from . import budgets, codec

    records = codec.run(args.traces, codecs=args.codec, steps=args.steps, threads=args.threads)
    if args.json:
        print_json(records)
    else:
        print_tables(records, by="trace", columns=codec.COLUMNS, caption=codec.CAPTION)
    if not args.check:
        return 0
    for trace in dict.fromkeys(record["trace"] for record in records):
        if budgets.too_small(records, trace):
            progress(f"{trace}: only exactness is judged, the patches are too small to judge sizes")
    return _verdict(budgets.missed_by_codecs(records))


def _kernels(args: argparse.Namespace) -> int:
    from . import budgets, kernels

    sizes = [kernels.SIZES[name] for name in args.sizes.split(",")]
    if args.full:
        sizes = list(kernels.SIZES.values())
    densities = [float(text) for text in args.densities.split(",")]
    records = kernels.run(sizes, densities, kernels.THREADS)
    if args.json:
        print_json(records)
    else:
        print_tables(records, by="weights", columns=kernels.COLUMNS, caption=kernels.CAPTION)
    return _verdict(budgets.missed_by_kernels(records)) if args.check else 0


def _page(args: argparse.Namespace) -> int:
    from . import page

    page.main()
    return 0


def _verdict(missed: Iterable[str]) -> int:
    lines = list(missed)
    for line in lines:
        progress(f"missed: {line}")
    progress("check: failed" if lines else "check: passed")
    return 1 if lines else 0


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--json", action="store_true", help="a list of records instead of tables")
    shared.add_argument("--check", action="store_true", help="exit 1 when a promise is missed")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(required=True, metavar="codec | kernels | page")

    codec = commands.add_parser("codec", parents=[shared], help="sizes and times on real updates")
    codec.add_argument(
        "--traces",
        type=Path,
        default=Path(__file__).parent / "data",
        help="directory of trace files; default: the excerpt in the repository",
    )
    codec.add_argument(
        "--codec", action="append", default=[], help="only this one; may be repeated"
    )
    codec.add_argument("--steps", type=int, help="at most so many steps of each trace")
    codec.add_argument("--threads", type=int, default=1, help="threads of our codecs; default: 1")
    codec.set_defaults(main=_codec)

    kernels = commands.add_parser("kernels", parents=[shared], help="times against memcpy")
    kernels.add_argument("--sizes", default="1M,16M,128M", help="of 1M, 16M, 128M, 1G weights")
    kernels.add_argument("--densities", default="0.001,0.01,0.1", help="shares of changed weights")
    kernels.add_argument("--full", action="store_true", help="all sizes up to 1G weights")
    kernels.set_defaults(main=_kernels)

    page = commands.add_parser("page", help="make docs/performance.md from benchmarks/results")
    page.set_defaults(main=_page)
    return parser


if __name__ == "__main__":
    sys.exit(main())
