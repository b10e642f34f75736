# `make` prints what there is. Everything else is in scripts/ and .ci/run.
.PHONY: help demo test check outside
export ARGS DIR

help:
	@echo 'make demo    see it work: schedules fire, workers run, one is killed, sums are checked'
	@echo '             DIR=/some/folder  report on that folder; ARGS="--exit-after 2"  end by itself'
	@echo 'make test    all tests on a real nats-server and a real Postgres; T=name  only some'
	@echo '             BELLWETHER_TEST_PG=skip  without Postgres'
	@echo 'make check   format, clippy and docs, all warnings being errors'
	@echo 'make outside the README'"'"'s worker as a crate of its own, and the Python examples, run for real'
	@echo 'Needs a Rust toolchain, a C compiler and Python with pip; gets nats-server and Postgres itself.'

demo:
	@scripts/demo

test:
	@scripts/test $(T)

check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked

outside:
	scripts/outside-crate
	scripts/python-examples
