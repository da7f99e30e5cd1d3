package models

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/compile"
	"reprise/internal/testprog"
	"reprise/ir"
	"reprise/ir/tensor"
	"reprise/runtime"
)

// lab's programs are planned with few steps: what is tested is the programs.
var lab = testprog.New(300)

func TestMain(m *testing.M) { lab.Main(m) }

func builtin(t testing.TB, spec string, train bool) *frontend.Model {
	t.Helper()
	return testprog.Load(t, "builtin:"+spec, train)
}

// trained is the training step of a model.
func trained(t testing.TB, m nn.Model, r nn.Recipe) *frontend.Model {
	t.Helper()
	mod, err := nn.Train(m, r)
	require.NoError(t, err)
	return &frontend.Model{Name: m.Name, Kind: "test", Spec: m.Name, Module: mod, Train: true}
}

const (
	v3 = "cpu:x86-64-v3"
	v4 = "cpu:x86-64-v4"
)

// compiled compiles m for a target at a budget: in bytes, 0 for everything, -1 for the smallest.
func compiled(t testing.TB, m *frontend.Model, target string, budget int64) *testprog.Program {
	t.Helper()
	return lab.Compile(t, m, compile.Options{Target: target, Budget: compile.Budget{Bytes: max(budget, 0), Min: budget < 0}})
}

// seed is a program of a seed's model.
func seed(t testing.TB, spec, target string, budget int64) *testprog.Program {
	t.Helper()
	return compiled(t, builtin(t, spec, true), target, budget)
}

// start makes an instance with the state that testprog.Seed gives.
func start(t testing.TB, p *testprog.Program, threads int) *runtime.Instance {
	t.Helper()
	return p.Start(t, runtime.Options{Seed: testprog.Seed, Threads: threads})
}

// trace is what a run of a training program shows: the loss bits of each step, the first and the last loss,
// and the state's hash.
type trace struct {
	loss        []string
	first, last float64
	state       string
}

// run trains on the book.
func run(t testing.TB, p *testprog.Program, steps, threads int) trace {
	t.Helper()
	i := start(t, p, threads)
	var tr trace
	for s := range steps {
		testprog.Feed(t, i, p.Model, s, book(p.Model.Module.Func("step"), s))
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
