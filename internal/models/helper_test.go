package models

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/ir"
	"reprise/ir/interp"
	"reprise/ir/tensor"
	"reprise/passes/policy"
	"reprise/runtime"
	"reprise/runtime/exe"
)

func long() bool { return os.Getenv("REPRISE_LONG") != "" }

// work is what compilations of the tests share: the driver, and objects of equal kernels.
type work struct {
	dir     string
	drivers exe.Drivers
	objects cpu.Objects
	n       int
	made    map[string]func() *program
	mu      sync.Mutex
}

var shared = sync.OnceValues(func() (*work, error) {
	dir, err := os.MkdirTemp("", "reprise-models-")
	if err != nil {
		return nil, err
	}
	w := &work{dir: dir, made: map[string]func() *program{}}
	return w, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if w, err := shared(); err == nil {
		_ = w.drivers.Close()
		os.RemoveAll(w.dir)
	}
	os.Exit(code)
}

func builtin(t testing.TB, spec string, train bool) *frontend.Model {
	t.Helper()
	m, err := frontend.Load("builtin:"+spec, frontend.Options{Train: train})
	require.NoError(t, err)
	return m
}

// trained is the training step of a model.
func trained(t testing.TB, m nn.Model, r nn.Recipe) *frontend.Model {
	t.Helper()
	mod, err := nn.Train(m, r)
	require.NoError(t, err)
	return &frontend.Model{Name: m.Name, Kind: "test", Spec: m.Name, Module: mod, Train: true}
}

// program is a compiled model.
type program struct {
	*compile.Program
	m   *frontend.Model
	lib string
}

const (
	v3 = "cpu:x86-64-v3"
	v4 = "cpu:x86-64-v4"
)

// compiled compiles m for a target at a budget: in bytes, 0 for everything, -1 for the smallest.
func compiled(t testing.TB, m *frontend.Model, target string, budget int64) *program {
	t.Helper()
	return under(t, m, nil, compile.Options{Target: target, Budget: compile.Budget{Bytes: max(budget, 0), Min: budget < 0}})
}

// under compiles m under a policy.
func under(t testing.TB, m *frontend.Model, p *policy.Policy, o compile.Options) *program {
	t.Helper()
	w, err := shared()
	require.NoError(t, err)
	w.mu.Lock()
	w.n++
	lib := filepath.Join(w.dir, fmt.Sprintf("m%d.so", w.n))
	w.mu.Unlock()
	o.NoMinimum, o.Shared, o.Drivers, o.Objects, o.PlanSteps, o.Policy = true, true, &w.drivers, &w.objects, 300, p
	made, err := compile.Make(context.Background(), m, o, lib)
	require.NoError(t, err)
	return &program{made, m, lib}
}

// seed is a program of a seed's model, which tests share.
func seed(t testing.TB, spec, target string, budget int64) *program {
	t.Helper()
	w, err := shared()
	require.NoError(t, err)
	w.mu.Lock()
	key := fmt.Sprint(spec, target, budget)
	if w.made[key] == nil {
		w.made[key] = sync.OnceValue(func() *program { return compiled(t, builtin(t, spec, true), target, budget) })
	}
	make := w.made[key]
	w.mu.Unlock()
	p := make()
	require.NotNil(t, p, "another test failed to make this program")
	return p
}

// start makes an instance whose state comes from seed 11.
func (p *program) start(t testing.TB, threads int) *runtime.Instance {
	t.Helper()
	i, err := runtime.Load(p.lib, runtime.Options{Seed: 11, Threads: threads})
	require.NoError(t, err)
	t.Cleanup(func() { _ = i.Close() })
	return i
}

// feed binds the inputs of step s; with, where it has an input, takes the place of data made from a seed.
func feed(t testing.TB, i *runtime.Instance, m *frontend.Model, s int, with map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	t.Helper()
	in := map[string]*tensor.Tensor{}
	for _, p := range m.Module.Func("step").Body.Params {
		if p.Role() != ir.RoleInput {
			continue
		}
		x := with[p.Name]
		if x == nil {
			var err error
			x, err = compile.SyntheticInput(p, 5, s)
			require.NoError(t, err)
		}
		require.NoError(t, i.Bind(p.Name, x.Data))
		in[p.Name] = x
	}
	return in
}

// trace is what a run of a training program shows: the loss bits of each step, the first and the last loss,
// and the state's hash.
type trace struct {
	loss        []string
	first, last float64
	state       string
}

// run trains on the book.
func (p *program) run(t testing.TB, steps, threads int) trace {
	t.Helper()
	i := p.start(t, threads)
	var tr trace
	for s := range steps {
		feed(t, i, p.m, s, book(p.m.Module.Func("step"), s))
		require.NoError(t, i.Step())
		loss, err := i.Read("loss")
		require.NoError(t, err)
		tr.loss = append(tr.loss, fmt.Sprintf("%x", loss))
		tr.last = lossOf(t, i)
		if s == 0 {
			tr.first = tr.last
		}
	}
	var err error
	tr.state, err = i.StateSHA256()
	require.NoError(t, err)
	return tr
}

// results are all results of the step that was run last, by name.
func results(t testing.TB, i *runtime.Instance, m *frontend.Model) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, name := range m.Module.Func("step").Results {
		b, err := i.Read(name)
		require.NoError(t, err)
		out[name] = b
	}
	return out
}

// same compares results, naming the first that differs in the order of the program.
func same(t testing.TB, m *frontend.Model, want, got map[string][]byte, what string) {
	t.Helper()
	for _, name := range m.Module.Func("step").Results {
		require.Equal(t, want[name], got[name], "%s: %s", what, name)
	}
}

// reference runs the step's meaning in the interpreter.
type reference struct {
	step  *ir.Func
	state map[string]*tensor.Tensor
}

func interpreted(t testing.TB, m *frontend.Model) *reference {
	t.Helper()
	ref, err := compile.Reference(m.Module)
	require.NoError(t, err)
	r := &reference{step: ref.Func("step"), state: map[string]*tensor.Tensor{}}
	if init := ref.Func("init"); init != nil {
		r.state, err = interp.RunNamed(init, map[string]*tensor.Tensor{"key": tensor.Key(11, 0xFFFFFFFF, 0)}, interp.Options{})
		require.NoError(t, err)
	}
	return r
}

func (r *reference) run(t testing.TB, s int, in map[string]*tensor.Tensor) map[string][]byte {
	t.Helper()
	args := map[string]*tensor.Tensor{}
	for _, p := range r.step.Body.Params {
		switch p.Role() {
		case ir.RoleKey:
			args[p.Name] = tensor.Key(11, uint32(s), 0)
		case ir.RoleStep:
			args[p.Name] = tensor.Of([]int64{int64(s)})
		case ir.RoleInput:
			args[p.Name] = in[p.Name]
		default:
			args[p.Name] = r.state[p.Name]
		}
	}
	vals, err := interp.RunNamed(r.step, args, interp.Options{})
	require.NoError(t, err)
	out := map[string][]byte{}
	for name, v := range vals {
		out[name] = v.Data
		if p := r.step.Param(name); p != nil && p.IsState() {
			r.state[name] = v
		}
	}
	return out
}

// equalsInterpreter runs steps of p and of the interpreter side by side.
func (p *program) equalsInterpreter(t testing.TB, steps, threads int) {
	t.Helper()
	ref, i := interpreted(t, p.m), p.start(t, threads)
	for s := range steps {
		in := feed(t, i, p.m, s, nil)
		require.NoError(t, i.Step())
		same(t, p.m, ref.run(t, s, in), results(t, i, p.m), fmt.Sprintf("step %d", s))
	}
}

type inputs = map[string]*tensor.Tensor

// fresh is a zero tensor of the type of a value.
func fresh(v *ir.Value) *tensor.Tensor { return tensor.New(v.Type.DType, v.Type.Shape...) }

// lossOf is the loss of the step that was run last.
func lossOf(t testing.TB, i *runtime.Instance) float64 {
	t.Helper()
	b, err := i.Read("loss")
	require.NoError(t, err)
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
}
