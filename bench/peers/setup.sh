#!/bin/sh
# Makes bench/peers/.venv with the libraries that `reprise bench --peers` compares
# against: PyTorch, JAX, optax and flax from PyPI, run on the CPU. Several GB are
# downloaded, once; a second run only checks that the imports work.
#
# What the peers run on is their own BLAS (oneDNN, MKL, XLA): settings for numpy's
# OpenBLAS would only slow them, so both are cleared here and in the benchmarks.
set -eu
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE || true

here=$(cd "$(dirname "$0")" && pwd)
venv=$here/.venv
python=${PYTHON:-python3}

if ! command -v "$python" >/dev/null 2>&1; then
	echo "setup.sh: $python not found; install it with: apt-get install python3 python3-venv" >&2
	exit 1
fi
if [ ! -x "$venv/bin/python" ]; then
	# A half-made environment must not look like a finished one.
	rm -rf "$venv"
	if ! "$python" -m venv "$venv"; then
		rm -rf "$venv"
		echo "setup.sh: can't make a virtual environment; install it with: apt-get install python3-venv" >&2
		exit 1
	fi
fi
if ! "$venv/bin/python" -c 'import torch, jax, optax, flax, numpy' >/dev/null 2>&1; then
	"$venv/bin/pip" install --no-input torch jax optax flax numpy
fi
JAX_PLATFORMS=cpu "$venv/bin/python" - <<'PY'
import flax, jax, numpy, optax, torch
print("torch", torch.__version__, "| jax", jax.__version__, "| optax", optax.__version__, "| flax", flax.__version__, "| numpy", numpy.__version__)
PY
