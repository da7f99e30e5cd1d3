package reports

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/ir"
)

type frontendModel = frontend.Model

// kernelsC are the kernels that reports tell of: an identity with noise, sums that race, calls that are counted.
const kernelsC = `
#include <stdatomic.h>
#include "reprise_foreign.h"

static atomic_int calls, told;
int noisy_calls(void) { return atomic_load(&calls); }
int told_calls(void) { return atomic_load(&told); }

/* NOISY: y = x, one ULP up or down for every other element, by turns from call to call. */
void noisy(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    const int32_t *x = (const int32_t *)args[1];
    int32_t *y = (int32_t *)args[2];
    int n = atomic_fetch_add(&calls, 1);
    (void)lo, (void)hi, (void)scratch;
    for (int64_t i = 0; i < reprise_elements(&call->arrays[0]); i++) y[i] = x[i] + ((n + i) % 2);
}
void noisy_vjp(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    (void)lo, (void)hi, (void)scratch;
    __builtin_memcpy(args[4], args[3], (size_t)call->arrays[2].bytes);
}

/* The sum of x, each tile adding its share when it comes by. */
void race(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    const float *x = (const float *)args[1];
    _Atomic float *y = (_Atomic float *)args[2];
    int64_t n = reprise_elements(&call->arrays[0]);
    (void)scratch;
    for (int64_t t = lo; t < hi; t++) {
        float part = 0, old = atomic_load(y);
        for (int64_t i = t * n / call->tiles; i < (t + 1) * n / call->tiles; i++) part += x[i];
        while (!atomic_compare_exchange_weak(y, &old, old + part)) {}
    }
}

/* y = 2x. */
void twice(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    const float *x = (const float *)args[1];
    float *y = (float *)args[2];
    (void)lo, (void)hi, (void)scratch;
    for (int64_t i = 0; i < reprise_elements(&call->arrays[0]); i++) y[i] = 2 * x[i];
}
void twice_vjp(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    const float *dy = (const float *)args[3];
    float *dx = (float *)args[4];
    (void)lo, (void)hi, (void)scratch;
    for (int64_t i = 0; i < reprise_elements(&call->arrays[2]); i++) dx[i] = 2 * dy[i];
}

/* y = x, and the world is told. */
void tell(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    (void)lo, (void)hi, (void)scratch;
    atomic_fetch_add(&told, 1);
    __builtin_memcpy(args[2], args[1], (size_t)call->arrays[0].bytes);
}
`

// kernels is the library of kernelsC, compiled once.
var kernels = sync.OnceValues(func() (string, error) {
	dir, err := lab.Dir()
	if err != nil {
		return "", err
	}
	src, lib := filepath.Join(dir, "k.c"), filepath.Join(dir, "libk.so")
	if err := os.WriteFile(src, []byte(kernelsC), 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command("clang-19", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", "../../runtime/native/src", "-o", lib, src)
	cmd.Stderr = os.Stderr
	return lib, cmd.Run()
})

// foreign calls a kernel of kernelsC on x.
func foreign(s *nn.Scope, f nn.Foreign, x *nn.Tensor, result ir.Type) *nn.Tensor {
	lib, err := kernels()
	if err != nil {
		panic(err)
	}
	f.Library = lib
	return s.Foreign(f, []ir.Type{result}, x)[0]
}

// noisy is NOISY under a registration of its determinism.
func noisy(s *nn.Scope, x *nn.Tensor, determinism string) *nn.Tensor {
	return foreign(s, nn.Foreign{Symbol: "noisy", Determinism: determinism, VJP: "noisy_vjp", CostNs: 1000}, x, x.Type)
}

// counter reads a counter of the library.
func counter(t testing.TB, name string) func() int {
	t.Helper()
	lib, err := kernels()
	require.NoError(t, err)
	h, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, purego.Dlclose(h)) })
	var f func() int32
	purego.RegisterLibFunc(&f, h, name)
	return func() int { return int(f()) }
}
