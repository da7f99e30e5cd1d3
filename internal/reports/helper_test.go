package reports

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/testprog"
	"reprise/ir"
	"reprise/ir/tensor"
	"reprise/passes/lower"
	"reprise/passes/policy"
	"reprise/passes/remat"
	"reprise/planner"
	"reprise/runtime"
)

// showing is gradient descent that gives every gradient as an output of the step as well.
type showing struct{}

func (showing) Start(_ *nn.Scope, _, lr *nn.Tensor) func(w *nn.Weight) *nn.Tensor {
	return func(w *nn.Weight) *nn.Tensor {
		w.Output("grad."+w.Param.Name, w.Grad)
		return w.Op("sgd", []*nn.Tensor{w.Param, w.Grad, lr}, ir.A("wd", 0.0))
	}
}

// recipe trains by showing.
func recipe(micro int) nn.Recipe {
	return nn.Recipe{Optimizer: showing{}, Schedule: nn.Constant{LR: 0.05}, Micro: micro}
}

// trained makes a training model of a loss.
func trained(t testing.TB, name string, loss func(s *nn.Scope) *nn.Tensor) *frontend.Model {
	t.Helper()
	return accumulated(t, name, 1, loss)
}

// accumulated is trained with micro-batches.
func accumulated(t testing.TB, name string, micro int, loss func(s *nn.Scope) *nn.Tensor) *frontend.Model {
	t.Helper()
	m, err := nn.Train(nn.Model{Name: name, Loss: loss}, recipe(micro))
	require.NoError(t, err)
	return of(m, true)
}

// of is a module as a model.
func of(m *ir.Module, train bool) *frontend.Model {
	return &frontend.Model{Name: m.Name, Kind: "test", Spec: m.Name, Module: m, Train: train}
}

// setup is how a model is compiled and run. The zero value keeps everything, on two threads.
type setup struct {
	compile.Options
	threads int
	steps   int // 0: two
	seed    uint64
	from    int64 // number of the first step
}

func atBudget(b int64) setup {
	return setup{Options: compile.Options{Budget: compile.Budget{Bytes: b}}}
}

func smallest() setup { return setup{Options: compile.Options{Budget: compile.Budget{Min: true}}} }

// steps is what a run shows: for each step the outputs and the state by name.
type steps []map[string][]byte

// outcome is a compiled program and what it showed.
type outcome struct {
	t     testing.TB
	m     *frontend.Model
	p     *compile.Program
	lib   string
	rank  int                       // of two that run together
	given map[string]*tensor.Tensor // inputs in place of made-up ones
	steps steps
}

// planSteps keeps the planner's search short: what is tested is the programs.
const planSteps = 500

// lab is what the tests of the package share: nothing of it reaches a program.
var lab = testprog.New(planSteps)

func TestMain(m *testing.M) { lab.Main(m) }

// under is a run under a named policy ("": none) with more lines.
func under(t testing.TB, name string, lines ...string) setup {
	t.Helper()
	p, err := policy.Load(name)
	require.NoError(t, err)
	p, err = p.With(lines...)
	require.NoError(t, err)
	return setup{Options: compile.Options{Policy: p}}
}

// planned plans without code.
func planned(t testing.TB, m *frontend.Model, o compile.Options) *compile.Program {
	t.Helper()
	p, err := tryPlan(m, o)
	require.NoError(t, err)
	return p
}

func tryPlan(m *frontend.Model, o compile.Options) (*compile.Program, error) {
	o.NoMinimum, o.PlanSteps = true, planSteps
	return compile.Plan(context.Background(), m, o)
}

// run compiles a model, runs it, and holds what must hold for every run: nothing pinned runs twice, what runs
// is what was planned, the peak is what was promised, and within the budget.
func run(t testing.TB, m *frontend.Model, s setup) *outcome {
	t.Helper()
	before := m.Module.String()
	p := lab.Compile(t, m, s.Options)
	require.Equal(t, before, m.Module.String(), "compilation changed its input")
	o := &outcome{t: t, m: m, p: p.Program, lib: p.Library}
	o.again(s)
	o.promises()
	return o
}

// again runs the compiled program once more.
func (o *outcome) again(s setup) steps {
	o.t.Helper()
	o.steps = o.execute(s)
	return o.steps
}

// promises holds a program against its plan.
func (o *outcome) promises() {
	o.t.Helper()
	t, p := o.t, o.p
	require.NoError(t, p.ProveOnce())
	rep, err := planner.Check(p.Problem(), p.Plan(), -1)
	require.NoError(t, err)
	require.Equal(t, rep.PeakBytes, p.Report.LiveBytes, "the planner's peak and the layout's")
	require.LessOrEqual(t, p.Report.LiveBytes, p.Report.ArenaBytes)
	require.LessOrEqual(t, p.Report.ArenaBytes, p.Report.BudgetBytes)
	require.Equal(t, p.Exe.ArenaBytes, p.Report.PromisedPeakBytes)
	want, got := plannedRuns(p), launchedRuns(p)
	require.Len(t, got, len(want), "the program that runs is not the planned one")
	for i := range want {
		require.True(t, want[i] == got[i], "at %d the program runs %s, the plan %s", i, got[i].Loc, want[i].Loc)
	}
}

// plannedRuns lists the ops of the planned step that have code, in order.
func plannedRuns(p *compile.Program) []*ir.Op {
	var out []*ir.Op
	for _, op := range p.Step.Func("step").Body.Ops {
		if !lower.IsConstant(op) && !lower.IsView(op) && !empty(op) {
			out = append(out, op)
		}
	}
	return out
}

func empty(op *ir.Op) bool {
	return len(op.Results) > 0 && !slices.ContainsFunc(op.Results, func(v *ir.Value) bool { return v.Type.Len() > 0 })
}

// launchedRuns lists the ops whose code the step's program has, in order.
func launchedRuns(p *compile.Program) []*ir.Op {
	var out []*ir.Op
	for _, r := range p.Runs {
		if r.Sub == 0 {
			out = append(out, r.IR)
		}
	}
	return out
}

const (
	fill  = 0xa5
	guard = 4096
)

// execute loads the program, runs it in an arena of rubbish, and shows all.
func (o *outcome) execute(s setup) steps {
	t := o.t
	t.Helper()
	if s.steps == 0 {
		s.steps = 2
	}
	if s.threads == 0 {
		s.threads = 2
	}
	l, err := runtime.Open(o.lib)
	require.NoError(t, err)
	defer l.Close()
	n := l.Description.ArenaBytes
	require.Equal(t, o.p.Report.ArenaBytes, n)
	mem := make([]byte, n+guard+64)
	off := (64 - int64(uintptr(unsafe.Pointer(&mem[0]))%64)) % 64
	arena := mem[off : off+n+guard]
	for i := range arena {
		arena[i] = fill
	}
	i, err := l.Create(runtime.Options{Seed: testprog.Seed + s.seed, Threads: s.threads, Arena: arena[:n:n]})
	require.NoError(t, err)
	defer i.Close()
	if s.from != 0 {
		require.NoError(t, i.SetStepNumber(s.from))
	}
	require.NoError(t, i.Count())
	var out steps
	for k := range s.steps {
		out = append(out, o.step(i, int(s.from)+k))
	}
	counts, err := i.Counts()
	require.NoError(t, err)
	for k, op := range l.Description.Ops {
		if op.Sub == 0 {
			require.EqualValues(t, s.steps, counts[k], "runs of clone %d of %s", op.Clone, op.Name)
		}
	}
	top := n + guard
	for top > 0 && arena[top-1] == fill {
		top--
	}
	require.LessOrEqual(t, top, n, "bytes past the arena were written")
	require.Greater(t, top, n-64, "the promised peak was never reached")
	return out
}

// step binds the inputs of a step, runs it, and reads outputs and state.
func (o *outcome) step(i *runtime.Instance, step int) map[string][]byte {
	t, f := o.t, o.m.Module.Func("step")
	t.Helper()
	for _, p := range f.Body.Params {
		if p.Role() == ir.RoleInput {
			require.NoError(t, i.Bind(p.Name, o.input(p, step).Data))
		}
	}
	require.NoError(t, i.Step())
	out := map[string][]byte{}
	for _, name := range names(f) {
		b, err := i.Read(name)
		require.NoError(t, err)
		out[name] = b
	}
	return out
}

func (o *outcome) input(p *ir.Value, step int) *tensor.Tensor {
	if x := o.given[p.Name]; x != nil {
		return x
	}
	x, err := compile.SyntheticInput(p, uint64(5+o.rank), step)
	require.NoError(o.t, err)
	if p.Name == "rank" {
		x.Data = rankBytes(o.rank)
	}
	return x
}

// names are the results and the states of a step.
func names(f *ir.Func) []string {
	out := slices.Clone(f.Results)
	for _, p := range f.Body.Params {
		if p.IsState() && f.Result(p.Name) == nil {
			out = append(out, p.Name)
		}
	}
	slices.Sort(out)
	return out
}

// same holds two runs to equal bits, and names the first value that differs.
func same(t testing.TB, want, got steps) {
	t.Helper()
	require.Equal(t, len(want), len(got))
	for k := range want {
		require.Equal(t, len(want[k]), len(got[k]))
		for _, name := range sorted(want[k]) {
			require.True(t, bytes.Equal(want[k][name], got[k][name]), "step %d: %s differs:\n%s\n%s", k, name, floats(want[k][name]), floats(got[k][name]))
		}
	}
}

func sorted(m map[string][]byte) []string {
	var out []string
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// floats shows the first elements.
func floats(b []byte) string {
	n := min(len(b)/4, 6)
	if n == 0 {
		return fmt.Sprint(b)
	}
	return fmt.Sprint(unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), n))
}

// exact runs a model keeping everything, at the smallest budget and, in the long test, half way, with other threads, and
// holds them to the same bits. It returns the first two. (By default budgets between are those of TestSameBits and of the fuzzer.)
func exact(t testing.TB, m *frontend.Model) (all, least *outcome) {
	t.Helper()
	all = run(t, m, setup{})
	least = run(t, m, setup{Options: smallest().Options, threads: 3})
	same(t, all.steps, least.steps)
	if lo, hi := least.p.Report.ArenaBytes, all.p.Report.ArenaBytes; lo < hi && testprog.Long() {
		half := run(t, m, setup{Options: atBudget((lo + hi) / 2).Options, threads: 1})
		same(t, all.steps, half.steps)
	}
	return all, least
}

// Counting ops of final programs.

// each visits every op of the planned step, those inside of units and regions too.
func (o *outcome) each(visit func(op *ir.Op)) { o.p.Step.Func("step").Body.Walk(visit) }

// runs counts how often ops of a name run in a step, in the layers whose path begins with prefix.
func (o *outcome) runs(name, prefix string) int {
	n := 0
	o.each(func(op *ir.Op) {
		if op.Name() == name && strings.HasPrefix(op.Loc.Layer, prefix) {
			n++
		}
	})
	return n
}

// clones are the ops of the planned step that are recomputations.
func (o *outcome) clones() []*ir.Op {
	var out []*ir.Op
	for _, op := range o.p.Step.Func("step").Body.Ops {
		if op.Remat != nil {
			out = append(out, op)
		}
	}
	return out
}

// backward reports whether an op was made by differentiation.
func backward(op *ir.Op) bool { return slices.Contains(op.Loc.Prov, "vjp") }

// saved are the values that the forward program keeps for the backward one.
func (o *outcome) saved() []*ir.Value {
	g := o.p.Graph()
	var out []*ir.Value
	for i, kept := range planner.KeptAcross(g.Problem, o.p.Plan().Order) {
		v := g.Values[i]
		if kept && v.Op != nil && !lower.IsConstant(v.Op) && !lower.IsView(v.Op) && !backward(v.Op) {
			out = append(out, v)
		}
	}
	return out
}

// savedIn are the saved values of layers whose path begins with prefix, each once by its op's layer and kind.
func (o *outcome) savedIn(prefix string) []string {
	var out []string
	for _, v := range o.saved() {
		if strings.HasPrefix(v.Op.Loc.Layer, prefix) {
			out = append(out, v.Op.Loc.Layer+":"+remat.Kind(v.Op))
		}
	}
	slices.Sort(out)
	return out
}

// layersAgain lists the layers in which something is computed again, each once.
func (o *outcome) layersAgain() []string {
	var out []string
	for _, c := range o.clones() {
		if !lower.IsView(c) && !slices.Contains(out, c.Loc.Layer) {
			out = append(out, c.Loc.Layer)
		}
	}
	slices.Sort(out)
	return out
}

// savedBytes is the size of the saved values.
func (o *outcome) savedBytes() int64 {
	var n int64
	for _, v := range o.saved() {
		n += v.Type.Bytes()
	}
	return n
}
