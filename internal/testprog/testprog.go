// Package testprog compiles and runs the programs of tests. What tests of one package have in common is made
// once: the driver, the objects of equal kernels, and programs of the same model and options.
package testprog

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/ir"
	"reprise/ir/interp"
	"reprise/ir/tensor"
	"reprise/passes/policy"
	"reprise/runtime"
	"reprise/runtime/exe"
)

// Seed is the seed of programs that Run starts and of Interpret.
const Seed = 11

// Long tells whether the long tests were asked for.
func Long() bool { return os.Getenv("REPRISE_LONG") != "" }

// Load makes the model of a specification.
func Load(t testing.TB, spec string, train bool) *frontend.Model {
	t.Helper()
	m, err := frontend.Load(spec, frontend.Options{Train: train})
	require.NoError(t, err)
	return m
}

// Lab is what the tests of a package share.
type Lab struct {
	steps   int64 // of the planner
	objects cpu.Objects
	drivers exe.Drivers
	dir     func() (string, error)

	mu   sync.Mutex
	n    int // programs
	made map[string]func() (*Program, error)
}

// New is a lab whose programs are planned with so many steps of work. Nothing is made before it is needed.
func New(planSteps int64) *Lab {
	return &Lab{
		steps: planSteps,
		dir:   sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "reprise-test-") }),
		made:  map[string]func() (*Program, error){},
	}
}

// Dir is a directory that lasts as long as the lab.
func (l *Lab) Dir() (string, error) { return l.dir() }

// Drivers are the drivers of all that is compiled in the lab.
func (l *Lab) Drivers() *exe.Drivers { return &l.drivers }

// Main runs the tests of a package and removes what the lab has made.
func (l *Lab) Main(m *testing.M) {
	code := m.Run()
	_ = l.drivers.Close()
	if dir, err := l.dir(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// Program is a model compiled to a shared library.
type Program struct {
	*compile.Program
	Model   *frontend.Model
	Library string
}

// Compile compiles a model, unless another test did the same before: a program is shared where options say
// nothing but target, budget and policy.
func (l *Lab) Compile(t testing.TB, m *frontend.Model, o compile.Options) *Program {
	t.Helper()
	p, err := l.Try(m, o)
	require.NoError(t, err)
	return p
}

// Try is Compile for what may be refused.
func (l *Lab) Try(m *frontend.Model, o compile.Options) (*Program, error) {
	make := func() (*Program, error) { return l.compile(m, o) }
	if shareable(o) {
		key := fmt.Sprintf("%s %v %x %s %+v %s", m.Name, m.Train, sha256.Sum256([]byte(m.Module.String())), o.Target, o.Budget, policyText(o.Policy))
		l.mu.Lock()
		if l.made[key] == nil {
			l.made[key] = sync.OnceValues(make)
		}
		make = l.made[key]
		l.mu.Unlock()
	}
	return make()
}

// shareable: o has a target, a budget and a policy at most.
func shareable(o compile.Options) bool {
	o.Target, o.Budget, o.Policy = "", compile.Budget{}, nil
	return reflect.ValueOf(o).IsZero()
}

// policyText has all that a policy says, and where.
func policyText(p *policy.Policy) string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("%q %#v", p.Name(), p.Lines())
}

func (l *Lab) compile(m *frontend.Model, o compile.Options) (*Program, error) {
	dir, err := l.dir()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.n++
	path := filepath.Join(dir, fmt.Sprintf("m%d.so", l.n))
	l.mu.Unlock()
	o.NoMinimum, o.Shared, o.Drivers, o.Objects, o.PlanSteps = true, true, &l.drivers, &l.objects, l.steps
	p, err := compile.Make(context.Background(), m, o, path)
	if err != nil {
		return nil, err
	}
	return &Program{p, m, path}, nil
}

// Executable compiles m to an executable in a directory of the test.
func (l *Lab) Executable(t testing.TB, m *frontend.Model, o compile.Options) (path string, p *compile.Program) {
	t.Helper()
	o.NoMinimum, o.Drivers, o.Objects, o.PlanSteps = true, &l.drivers, &l.objects, l.steps
	path = filepath.Join(t.TempDir(), "m")
	p, err := compile.Make(context.Background(), m, o, path)
	require.NoError(t, err)
	return path, p
}

// Start makes an instance.
func (p *Program) Start(t testing.TB, o runtime.Options) *runtime.Instance {
	t.Helper()
	i, err := runtime.Load(p.Library, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = i.Close() })
	return i
}

// Trace is everything that a training run shows: the loss bits of each step and the state's hash.
type Trace struct {
	Loss  []string
	State string
}

// Run trains with the seed Seed.
func (p *Program) Run(t testing.TB, steps, threads int) Trace {
	t.Helper()
	i, err := runtime.Load(p.Library, runtime.Options{Seed: Seed, Threads: threads})
	require.NoError(t, err)
	defer i.Close()
	return Steer(t, i, p.Model, 0, steps)
}

// Steer runs steps from … to-1 on an instance of m.
func Steer(t testing.TB, i *runtime.Instance, m *frontend.Model, from, to int) Trace {
	t.Helper()
	var tr Trace
	for s := from; s < to; s++ {
		Feed(t, i, m, s, nil)
		require.NoError(t, i.Step())
		loss, err := i.Read("loss")
		require.NoError(t, err)
		tr.Loss = append(tr.Loss, fmt.Sprintf("%x", loss))
	}
	var err error
	tr.State, err = i.StateSHA256()
	require.NoError(t, err)
	return tr
}

// Feed binds the inputs of a step, and gives them: with, where it has one, and made from the step's number else.
func Feed(t testing.TB, i *runtime.Instance, m *frontend.Model, step int, with map[string]*tensor.Tensor) map[string]*tensor.Tensor {
	t.Helper()
	in := map[string]*tensor.Tensor{}
	for _, p := range m.Module.Func("step").Body.Params {
		if p.Role() != ir.RoleInput {
			continue
		}
		x := with[p.Name]
		if x == nil {
			var err error
			x, err = compile.SyntheticInput(p, 5, step)
			require.NoError(t, err)
		}
		require.NoError(t, i.Bind(p.Name, x.Data))
		in[p.Name] = x
	}
	return in
}

// Results are all results of the step that was run last, by name.
func Results(t testing.TB, i *runtime.Instance, m *frontend.Model) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, name := range m.Module.Func("step").Results {
		b, err := i.Read(name)
		require.NoError(t, err)
		out[name] = b
	}
	return out
}

// Same compares results, naming the first that differs in the order of the program.
func Same(t testing.TB, m *frontend.Model, want, got map[string][]byte, what string) {
	t.Helper()
	for _, name := range m.Module.Func("step").Results {
		require.Equal(t, want[name], got[name], "%s: %s", what, name)
	}
}

// Reference runs the meaning of a model's step in the interpreter.
type Reference struct {
	step  *ir.Func
	State map[string]*tensor.Tensor // what the next step reads; each step replaces its values
}

// Interpret starts the interpreter on a model, with the seed Seed.
func Interpret(t testing.TB, m *frontend.Model) *Reference {
	t.Helper()
	ref, err := compile.Reference(m.Module)
	require.NoError(t, err)
	r := &Reference{step: ref.Func("step"), State: map[string]*tensor.Tensor{}}
	if init := ref.Func("init"); init != nil {
		r.State, err = interp.RunNamed(init, map[string]*tensor.Tensor{"key": tensor.Key(Seed, 0xFFFFFFFF, 0)}, interp.Options{})
		require.NoError(t, err)
	}
	return r
}

// Step runs a step with these inputs, and gives its results by name.
func (r *Reference) Step(t testing.TB, step int, in map[string]*tensor.Tensor) map[string][]byte {
	t.Helper()
	args := map[string]*tensor.Tensor{}
	for _, p := range r.step.Body.Params {
		switch p.Role() {
		case ir.RoleKey:
			args[p.Name] = tensor.Key(Seed, uint32(step), 0)
		case ir.RoleStep:
			x := tensor.New(p.Type.DType, p.Type.Shape...)
			x.SetBits(0, uint64(step))
			args[p.Name] = x
		case ir.RoleInput:
			args[p.Name] = in[p.Name]
		default:
			args[p.Name] = r.State[p.Name]
		}
	}
	vals, err := interp.RunNamed(r.step, args, interp.Options{})
	require.NoError(t, err)
	out := map[string][]byte{}
	for name, v := range vals {
		out[name] = v.Data
		if p := r.step.Param(name); p != nil && p.IsState() {
			r.State[name] = v
		}
	}
	return out
}

// EqualsInterpreter runs steps of the program and of the interpreter side by side, to the same bits.
func (p *Program) EqualsInterpreter(t testing.TB, steps, threads int) {
	t.Helper()
	ref, i := Interpret(t, p.Model), p.Start(t, runtime.Options{Seed: Seed, Threads: threads})
	for s := range steps {
		in := Feed(t, i, p.Model, s, nil)
		require.NoError(t, i.Step())
		Same(t, p.Model, ref.Step(t, s, in), Results(t, i, p.Model), fmt.Sprintf("step %d", s))
	}
}
