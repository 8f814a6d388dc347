# Every target does its own set-up: a fresh machine needs Python 3.11 (or newer) and make.
.PHONY: install demo test test-gpu test-emulated check soak fuzz lowest bench regress

install:
	@scripts/install

demo: install
	@.venv/bin/kintsugi demo

test: install
	@nice scripts/check & scripts/test; status=$$?; wait $$! && exit $$status

test-gpu: install
	@scripts/test_gpu

test-emulated: install
	@scripts/test_emulated

check: install
	@scripts/check
	@scripts/regress

soak: install
	@scripts/soak

fuzz: install
	@scripts/fuzz

lowest: install
	@scripts/lowest

bench: install
	@scripts/bench

regress: install
	@scripts/regress
