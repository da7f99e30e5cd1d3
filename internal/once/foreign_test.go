package once

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/internal/testprog"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/tensor"
	"reprise/runtime"
	"reprise/runtime/exe"
)

// kernelsC are foreign kernels that are not what one would wish; good ones stand in docs/foreign.md.
const kernelsC = `
#include <stdatomic.h>
#include "reprise_foreign.h"

static atomic_int calls;
int noisy_calls(void) { return atomic_load(&calls); }

/* y = x, moved by up to an ULP that depends on how often it was called. */
void noisy(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    const int32_t *x = (const int32_t *)args[1];
    int32_t *y = (int32_t *)args[2];
    int n = atomic_fetch_add(&calls, 1);
    (void)lo, (void)hi, (void)scratch;
    for (int64_t i = 0; i < reprise_elements(&call->arrays[0]); i++) y[i] = x[i] + ((x[i] ^ i ^ n) & 1);
}

/* The gradient of the identity. */
void noisy_vjp(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    (void)lo, (void)hi, (void)scratch;
    __builtin_memcpy(args[4], args[3], (size_t)call->arrays[2].bytes);
}

/* y[0] = the sum of x, each tile adding its share when it comes by. */
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

/* y = x, but for the last element, which is left as it was. */
void partial(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    (void)lo, (void)hi, (void)scratch;
    __builtin_memcpy(args[2], args[1], (size_t)call->arrays[0].bytes - 4);
}

/* Leaky ReLU with slopes drawn from a key, which are a result of their own. */
void rrelu(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    const float *x = (const float *)args[1];
    const uint32_t *key = (const uint32_t *)args[2];
    float *y = (float *)args[3], *slope = (float *)args[4];
    (void)lo, (void)hi, (void)scratch;
    for (int64_t i = 0; i < reprise_elements(&call->arrays[0]); i++) {
        uint32_t h = (uint32_t)i * 2654435761u ^ key[0] ^ key[2] * 40503u;
        h = (h ^ h >> 15) * 2246822519u;
        slope[i] = x[i] < 0 ? 0.125f + (float)(h >> 8) * 0x1p-26f : 1;
        y[i] = x[i] * slope[i];
    }
}
void rrelu_vjp(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    const float *slope = (const float *)args[4], *dy = (const float *)args[5];
    float *dx = (float *)args[7];
    (void)lo, (void)hi, (void)scratch;
    for (int64_t i = 0; i < reprise_elements(&call->arrays[0]); i++) dx[i] = dy[i] * slope[i];
}

/* y = x, and the world is told. */
static atomic_int told;
int host_calls(void) { return atomic_load(&told); }
void host(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    const reprise_call *call = (const reprise_call *)args[0];
    (void)lo, (void)hi, (void)scratch;
    atomic_fetch_add(&told, 1);
    __builtin_memcpy(args[2], args[1], (size_t)call->arrays[0].bytes);
}
`

// foreignLibrary compiles the kernels of docs/foreign.md and those above to DIR/libk.so.
func foreignLibrary(t testing.TB, dir string) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/foreign.md")
	require.NoError(t, err)
	_, example, ok := strings.Cut(string(doc), "```c\n")
	require.True(t, ok)
	example, _, ok = strings.Cut(example, "```")
	require.True(t, ok)
	src, lib := filepath.Join(dir, "k.c"), filepath.Join(dir, "libk.so")
	require.NoError(t, os.WriteFile(src, []byte(example+kernelsC), 0o600))
	out, err := exec.Command("clang-19", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
		"-I", "../../runtime/native/src", "-o", lib, src).CombinedOutput()
	require.NoError(t, err, string(out))
	return lib
}

func trained(t testing.TB, m nn.Model) *frontend.Model {
	t.Helper()
	sched, err := nn.ParseRecipe([]string{"optimizer=sgd", "lr=0.05", "schedule=constant"})
	require.NoError(t, err)
	mod, err := nn.Train(m, sched)
	require.NoError(t, err)
	return &frontend.Model{Name: m.Name, Kind: "ir", Spec: m.Name, Module: mod, Train: true, SHA256: "0"}
}

// foreignNet has three layers whose activation is a foreign kernel.
func foreignNet(t testing.TB, act func(s *nn.Scope, x *nn.Tensor) *nn.Tensor) *frontend.Model {
	return trained(t, nn.Model{Name: "foreign", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{64, 48}, nn.Normal01)
		for i := range 3 {
			l := s.Inf("layers.%d", i)
			x = act(l.In("act"), l.Linear("fc", x, 48))
		}
		return s.MeanAll(s.Square(x))
	}})
}

func cube(library string) func(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
	return func(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
		return s.Foreign(nn.Foreign{Library: library, Symbol: "cube", Determinism: "exact", Tiles: 5, CostNs: 1000, VJP: "cube_vjp"}, []ir.Type{x.Type}, x)[0]
	}
}

// TestForeignKernel: the function of docs/foreign.md, declared exact, is recomputed at the smallest budget; bits
// are those of the interpreter, which calls it too, and depend on neither budget nor threads. The executable
// finds the library beside itself.
func TestForeignKernel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lib := foreignLibrary(t, dir)
	m := foreignNet(t, cube(lib))
	all := lab.Compile(t, m, compile.Options{})
	want := all.Run(t, 4, 1)
	p := lab.Compile(t, m, compile.Options{Budget: compile.Budget{Min: true}})
	assert.Positive(t, p.Report.Recomputed)
	assert.Empty(t, p.Report.NoCostModel)
	for _, threads := range []int{1, 3} {
		assert.Equal(t, want, p.Run(t, 4, threads))
	}

	ref, err := compile.Reference(m.Module)
	require.NoError(t, err)
	opt, done := compile.InterpOptions("")
	defer func() { require.NoError(t, done()) }()
	state, err := interp.RunNamed(ref.Func("init"), map[string]*tensor.Tensor{"key": tensor.Key(11, exe.InitStep, 0)}, opt)
	require.NoError(t, err)
	in, err := compile.SyntheticInput(ref.Func("step").Param("x"), 5, 0)
	require.NoError(t, err)
	state["x"], state["step"], state["key"] = in, tensor.Of([]int64{0}), tensor.Key(11, 0, 0)
	got, err := interp.RunNamed(ref.Func("step"), state, opt)
	require.NoError(t, err)
	assert.Equal(t, want.Loss[0], fmt.Sprintf("%x", got["loss"].Data))

	near := foreignNet(t, cube("libk.so"))
	bin := filepath.Join(dir, "model")
	_, err = compile.Make(context.Background(), near, compile.Options{NoMinimum: true, PlanSteps: planSteps}, bin)
	require.NoError(t, err)
	out, err := exec.Command(bin, "--steps", "2", "--json").Output()
	require.NoError(t, err)
	assert.Contains(t, string(out), `"done":true`)

	// Elsewhere it has no library; and one without the function is no better.
	moved := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.Rename(bin, moved))
	for _, c := range []struct{ prepare, message string }{
		{"", `foreign kernel \"cube\": cannot load its library: `},
		{"void other(void) {}", `foreign kernel \"cube\": library libk.so has no such function`},
	} {
		if c.prepare != "" {
			cc := exec.Command("clang-19", "-shared", "-fPIC", "-x", "c", "-", "-o", filepath.Join(filepath.Dir(moved), "libk.so"))
			cc.Stdin = strings.NewReader(c.prepare)
			require.NoError(t, cc.Run())
		}
		out, err = exec.Command(moved, "--steps", "1", "--json").Output()
		require.Error(t, err)
		assert.Contains(t, string(out), `"code":"foreign"`)
		assert.Contains(t, string(out), c.message)
		assert.Contains(t, string(out), "layer layers.0.act ")
	}
}

// TestForeignLoader: the errors of the interpreter's loader name what is missing.
func TestForeignLoader(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	foreignLibrary(t, dir)
	f := runtime.NewForeign(dir)
	defer f.Close()
	assert.Equal(t, "foreign", diag.As(f.Call("none.so", "cube", 1, nil, nil, nil)).Code)
	assert.ErrorContains(t, f.Call("libk.so", "sphere", 1, nil, nil, nil), `has no function "sphere"`)
}

// TestForeignCost: without a cost the kernel is kept and listed; with one the planner takes it into account.
func TestForeignCost(t *testing.T) {
	t.Parallel()
	plan := func(cost int64) *compile.Program {
		m := foreignNet(t, func(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
			return s.Foreign(nn.Foreign{Library: "libk.so", Symbol: "cube", Determinism: "exact", CostNs: cost, VJP: "cube_vjp"}, []ir.Type{x.Type}, x)[0]
		})
		p, err := compile.Plan(context.Background(), m, compile.Options{Budget: compile.Budget{Percent: 90}, NoMinimum: true, PlanSteps: 500})
		require.NoError(t, err)
		return p
	}
	p := plan(0)
	require.NotEmpty(t, p.Report.NoCostModel)
	assert.Contains(t, p.Report.NoCostModel[0], "layers.0.act:foreign cube")
	assert.Contains(t, p.Report.Warnings[len(p.Report.Warnings)-1], "no cost model")
	p = plan(5_000_000)
	assert.Empty(t, p.Report.NoCostModel)
	assert.GreaterOrEqual(t, p.Report.BaseCostNs, int64(6*5_000_000), "three runs and three derivatives")
}

// calls reads a counter of a library that this process has loaded.
func calls(t testing.TB, lib, name string) int {
	t.Helper()
	h, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	defer purego.Dlclose(h)
	sym, err := purego.Dlsym(h, name)
	require.NoError(t, err)
	n, _, _ := purego.SyscallN(sym)
	return int(n)
}

// TestUnknownRunsOnce: a kernel that says nothing of itself, moves its operand by an ULP that depends on the
// number of calls and stands before a router with exact ties, runs once in a step at the smallest budget; with the
// decisions after it. (P002, P022)
func TestUnknownRunsOnce(t *testing.T) {
	t.Parallel()
	var traces []testprog.Trace
	for _, b := range []compile.Budget{{}, {Min: true}} {
		dir := t.TempDir()
		lib := foreignLibrary(t, dir) // a file of its own: its counter starts at 0
		m := trained(t, nn.Model{Name: "noisy", Loss: func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{16, 8}, nn.Normal01)
			x = s.In("in").Linear("fc", x, 8)
			x = s.In("noisy").Foreign(nn.Foreign{Library: lib, Symbol: "noisy", VJP: "noisy_vjp"}, []ir.Type{x.Type}, x)[0]
			x = s.Concat(0, x, x) // exact ties
			y, balance := s.Inf("layers.0").MoE("moe", x, 2, 1, 8, nn.WithInit(nn.Normal(0.5)))
			return s.Add(s.MeanAll(s.Square(y)), balance)
		}})
		p := lab.Compile(t, m, compile.Options{Budget: b})
		assert.Contains(t, p.Proof.Once, compile.Count{Op: "foreign", Why: "order", Before: 2, Planned: 2})
		assert.Contains(t, p.Proof.Once, compile.Count{Op: "top_k", Why: "choice", Before: 1, Planned: 1})
		i, err := runtime.Load(p.Library, runtime.Options{Seed: 11, Threads: 2})
		require.NoError(t, err)
		require.NoError(t, i.Count())
		traces = append(traces, testprog.Steer(t, i, m, 0, 3))
		assert.Equal(t, 3, calls(t, lib, "noisy_calls"))
		counts, err := i.Counts()
		require.NoError(t, err)
		require.NoError(t, p.Executed(counts, 3))
		for _, c := range p.Proof.Once {
			assert.Equal(t, c.Before, c.Executed, c.Op)
		}
		require.NoError(t, i.Close())
	}
	assert.Equal(t, traces[0], traces[1])
}

// TestHostEffectHappensOnce: a call of the host inside a layer that is recomputed happens once in a step.
func TestHostEffectHappensOnce(t *testing.T) {
	t.Parallel()
	lib := foreignLibrary(t, t.TempDir())
	m := foreignNet(t, func(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
		y := s.Foreign(nn.Foreign{Library: lib, Symbol: "host", Determinism: "exact", Effect: "host"}, []ir.Type{x.Type}, s.Op("stop_gradient", []*nn.Tensor{x}))[0]
		return s.Gelu(s.Add(x, s.Op("stop_gradient", []*nn.Tensor{s.Scale(y, 0.5)})))
	})
	p := lab.Compile(t, m, compile.Options{Budget: compile.Budget{Min: true}})
	assert.Positive(t, p.Proof.Clones)
	i, err := runtime.Load(p.Library, runtime.Options{Threads: 2})
	require.NoError(t, err)
	defer i.Close()
	testprog.Steer(t, i, m, 0, 3)
	assert.Equal(t, 9, calls(t, lib, "host_calls"))
}

// TestKeyedForeign: a randomised leaky ReLU whose slopes are a second result of the same op: no side buffer that could
// be read before it is written, and bits do not depend on the budget. (P016)
func TestKeyedForeign(t *testing.T) {
	t.Parallel()
	lib := foreignLibrary(t, t.TempDir())
	m := foreignNet(t, func(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
		return s.Foreign(nn.Foreign{Library: lib, Symbol: "rrelu", Determinism: "keyed", CostNs: 100, VJP: "rrelu_vjp"}, []ir.Type{x.Type, x.Type}, x, s.Key())[0]
	})
	all := lab.Compile(t, m, compile.Options{})
	p := lab.Compile(t, m, compile.Options{Budget: compile.Budget{Min: true}})
	assert.Positive(t, p.Proof.Clones)
	assert.Equal(t, all.Run(t, 3, 1), p.Run(t, 3, 2))
}

// TestProbe: every kernel of a model with dropout, a router and state is what it is declared to be, and of foreign
// kernels those that lie are found: one that counts its calls, one that adds in the order in which tiles
// come by. Declared as what they are, they are listed and nothing is wrong.
func TestProbe(t *testing.T) {
	t.Parallel()
	probe := func(m *frontend.Model, n int) []compile.Probed {
		p := lab.Compile(t, m, compile.Options{Budget: compile.Budget{Min: true}})
		found, err := p.Probe(p.Library, n, 3, func(v *ir.Value) ([]byte, error) {
			x, err := compile.SyntheticInput(v, 7, 0)
			require.NoError(t, err)
			return x.Data, nil
		})
		require.NoError(t, err)
		require.NotEmpty(t, found)
		return found
	}
	for _, k := range probe(testprog.Load(t, "builtin:moe,layers=1,d=24,heads=2,seq=12,batch=2,vocab=30,hidden=20,experts=4,dropout=0.2", true), 6) {
		assert.Equal(t, 1, k.Distinct, "%+v", k)
		assert.NoError(t, k.Error())
	}
	lib := foreignLibrary(t, t.TempDir())
	kernels := []struct {
		f              nn.Foreign
		same, lies     bool
		skipped, layer string
	}{
		{nn.Foreign{Symbol: "cube", Determinism: "exact", Tiles: 5}, true, false, "", "cubes"},
		{nn.Foreign{Symbol: "noisy", Determinism: "exact"}, false, true, "", "counts"},
		{nn.Foreign{Symbol: "partial", Determinism: "exact"}, false, true, "", "rest"},
		{nn.Foreign{Symbol: "race", Determinism: "exact", Tiles: 16}, false, true, "", "sums"},
		{nn.Foreign{Symbol: "race", Tiles: 8}, false, false, "", "unsaid"},
		{nn.Foreign{Symbol: "host", Determinism: "exact", Effect: "host"}, true, false, "its effect (host) happens once", "tells"},
	}
	m := trained(t, nn.Model{Name: "probe", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{512}, nn.Normal01)
		x = s.Mul(x, s.Param("w", []int64{512}, nn.Normal(1)))
		loss := s.MeanAll(s.Square(x))
		for _, k := range kernels {
			k.f.Library = lib
			y := s.In(k.layer).Foreign(k.f, []ir.Type{x.Type}, s.Op("stop_gradient", []*nn.Tensor{x}))[0]
			loss = s.Add(loss, s.MeanAll(s.Op("stop_gradient", []*nn.Tensor{y})))
		}
		return loss
	}})
	found := probe(m, 30)
	for _, k := range kernels {
		i := slices.IndexFunc(found, func(p compile.Probed) bool { return p.Layer == k.layer && p.Op == "foreign" })
		require.GreaterOrEqual(t, i, 0, k.layer)
		hit := found[i]
		assert.Equal(t, k.f.Symbol, hit.Symbol)
		assert.Equal(t, lib, hit.Library)
		assert.Equal(t, k.same, hit.Distinct == 1, "%+v", hit)
		assert.Equal(t, k.lies, hit.Lies(), "%+v", hit)
		assert.Equal(t, k.skipped, hit.Skipped)
		if !k.lies {
			assert.NoError(t, hit.Error())
			continue
		}
		e := diag.As(hit.Error())
		assert.Equal(t, "determinism", e.Code)
		assert.Equal(t, k.layer, e.Layer)
		assert.Equal(t, "foreign", e.Op)
		assert.Contains(t, e.Hint, `determinism="tol"`)
		hit.Determinism = "tol"
		assert.NoError(t, hit.Error())
	}
	_, err := json.Marshal(found)
	require.NoError(t, err)
}
