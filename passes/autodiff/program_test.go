package autodiff_test

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes/autodiff"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func parse(t *testing.T, src string) *ir.Module {
	t.Helper()
	m, err := ir.Parse(ops.Table(), "test.ir", src)
	require.NoError(t, err)
	return m
}

func differentiate(t *testing.T, src string) *ir.Module {
	t.Helper()
	m := parse(t, src)
	require.NoError(t, autodiff.Run(m, ops.Table()))
	require.NoError(t, ir.Verify(m))
	return m
}

func names(f *ir.Func) []string {
	var out []string
	f.Body.Walk(func(op *ir.Op) { out = append(out, op.Name()) })
	return out
}

func number(names []string, name string) int {
	n := 0
	for _, s := range names {
		if s == name {
			n++
		}
	}
	return n
}

// The program that a small network becomes, as text.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.ir")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".ir"), func(t *testing.T) {
			src, err := os.ReadFile(file)
			require.NoError(t, err)
			got := differentiate(t, string(src)).String()
			golden := strings.TrimSuffix(file, ".ir") + ".golden"
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o666))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			assert.Equal(t, string(want), got)
		})
	}
}

// network is two layers with a loss, whose gradient by some parameters comes out; cut
// stops the gradient between the layers.
func network(t *testing.T, cut bool, by ...string) *ir.Func {
	t.Helper()
	m := ir.NewModule("net")
	f := m.NewFunc("step")
	x := f.Body.AddParam("x", ir.T(dtype.F32, 4, 3))
	w1, w2 := f.Body.AddParam("w1", ir.T(dtype.F32, 3, 5)), f.Body.AddParam("w2", ir.T(dtype.F32, 5, 2))
	b := ir.NewBuilder(ops.Table(), f.Body, ir.Loc{Layer: "net"})
	mm := func(x, y V) V {
		return b.Op("contract", []V{x, y}, ir.A("lhs_contract", []int64{1}), ir.A("rhs_contract", []int64{0}))
	}
	h := b.Op("tanh", []V{mm(x, w1)})
	if cut {
		h = b.Op("stop_gradient", []V{h})
	}
	loss := b.Op("reduce", []V{mm(h, w2)}, ir.A("kind", "sum"), ir.A("axes", []int64{0, 1}))
	args := []V{loss}
	for _, n := range by {
		args = append(args, f.Param(n))
		f.Results = append(f.Results, "g."+n)
	}
	_, _ = w1, w2
	f.Body.Results = b.Multi("gradient", args, nil).Results
	require.NoError(t, autodiff.Run(m, ops.Table()))
	require.NoError(t, ir.Verify(m))
	return f
}

// A frozen parameter costs nothing: no op of the reverse program serves it, and none what
// lies before it.
func TestFrozenParametersCostNothing(t *testing.T) {
	for _, c := range []struct {
		cut                bool
		by                 []string
		contractions, tanh int // in all, and products with tanh's derivative
	}{
		{false, []string{"w1", "w2"}, 5, 2}, // forward 2, dw2, dh, dw1; no dx
		{false, []string{"w2"}, 3, 0},
		{false, []string{"w1"}, 4, 2},
		{true, []string{"w2"}, 3, 0},
		{true, []string{"w1"}, 2, 0}, // a dense zero, and no reverse program
	} {
		ops := names(network(t, c.cut, c.by...))
		assert.Equal(t, c.contractions, number(ops, "contract"), "%+v: %v", c, ops)
		assert.Equal(t, c.tanh, number(ops, "mul"), "%+v: %v", c, ops)
	}
}

// Ops of the reverse program carry the layer of what they differentiate.
func TestProvenance(t *testing.T) {
	m := parse(t, read(t, "testdata/mlp.ir"))
	step := m.Func("step")
	before := len(step.Body.Ops)
	require.NoError(t, autodiff.Run(m, ops.Table()))
	layers := map[string]bool{}
	for _, op := range step.Body.Ops {
		if len(op.Loc.Prov) > 0 {
			assert.Equal(t, []string{"vjp"}, op.Loc.Prov)
			layers[op.Loc.Layer] = true
		}
	}
	assert.Greater(t, len(step.Body.Ops), before)
	assert.Equal(t, map[string]bool{"fc1": true, "act": true, "fc2": true, "loss": true, "grad": true}, layers)
}

func read(t *testing.T, file string) string {
	t.Helper()
	src, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(src)
}

// The derivative of a module is a function of its text.
func TestDeterministic(t *testing.T) {
	for _, file := range []string{"mlp", "tied", "second", "loop"} {
		src := read(t, "testdata/"+file+".ir")
		first := differentiate(t, src).String()
		for range 5 {
			assert.Equal(t, first, differentiate(t, src).String())
		}
	}
}

// The text of what differentiation prints is read back, and runs to the same bits.
func TestRoundTrip(t *testing.T) {
	for _, file := range []string{"mlp", "tied", "second", "loop"} {
		m := differentiate(t, read(t, "testdata/"+file+".ir"))
		again := parse(t, m.String())
		assert.Equal(t, m.String(), again.String())
		args := drawArgs(m.Func("step"), 3)
		want, err := interp.Run(m.Func("step"), args)
		require.NoError(t, err)
		got, err := interp.Run(again.Func("step"), args)
		require.NoError(t, err)
		for i := range want {
			assert.True(t, tensor.Equal(want[i], got[i]), file)
		}
	}
}

func drawArgs(f *ir.Func, seed uint64) []*tensor.Tensor {
	r := rand.New(rand.NewPCG(seed, 9))
	var args []*tensor.Tensor
	for _, p := range f.Body.Params {
		hi := 1.0
		if p.Type.DType.IsInt() {
			hi = 2
		}
		args = append(args, param{t: p.Type, hi: hi}.draw(r))
	}
	return args
}

// A tied parameter's cotangents are added last use first: acc = add(last, first).
func TestAccumulationOrder(t *testing.T) {
	f := differentiate(t, read(t, "testdata/tied.ir")).Func("step")
	g := f.Result("g").Op
	require.Equal(t, "add", g.Name())
	assert.Equal(t, "contract", g.Operands[0].Op.Name(), "the head is the last use")
	assert.Equal(t, "take_grad", g.Operands[1].Op.Name(), "the embedding the first")
}

// What has no derivative is said with layer, op and a way out.
func TestRefusals(t *testing.T) {
	build := func(f func(b B, x V) V) error {
		m := ir.NewModule("m")
		fn := m.NewFunc("step")
		x := fn.Body.AddParam("x", ir.T(dtype.F32, 3))
		b := ir.NewBuilder(ops.Table(), fn.Body, ir.Loc{Layer: "block.7", File: "m.py", Line: 12})
		y := b.Op("reduce", []V{f(b, x)}, ir.A("kind", "sum"), ir.A("axes", []int64{0}))
		fn.Body.Results, fn.Results = b.Multi("gradient", []V{y, x}, nil).Results, []string{"g"}
		return autodiff.Run(m, ops.Table())
	}
	err := build(func(b B, x V) V {
		args := []V{i64c(b, 0), i64c(b, 5), x}
		cond := region(b, args, func(b B, p []V) []V { return []V{b.Op("compare", p[:2], ir.A("dir", "lt"))} })
		body := region(b, args, func(b B, p []V) []V {
			return []V{b.Op("add", []V{p[0], i64c(b, 1)}), b.Op("mul", []V{p[1], p[0]}), b.Op("sin", p[2:])}
		})
		return b.Multi("while", args, []*ir.Block{cond, body}).Results[2]
	})
	require.Error(t, err)
	assert.Equal(t, `m.py:12: layer block.7: while: @step: a gradient is asked for through a loop whose number of turns is not known
  hint: give the loop the attribute trips, or count with a constant start, step and limit`, err.Error())

	err = build(func(b B, x V) V {
		return b.Multi("foreign", []V{x}, nil, ir.A("symbol", "f"), ir.A("library", "libf.so"), ir.A("results", []string{"f32[3]"})).Results[0]
	})
	require.Error(t, err)
	assert.Contains(t, err.Error(), "m.py:12: layer block.7: foreign: @step: a gradient is asked for through an op that has none: ")
	assert.Contains(t, err.Error(), "hint: put stop_gradient before it")

	err = build(func(b B, x V) V { // a region that may run only once
		pred := b.Op("constant", nil, ir.A("value", tensor.Of([]bool{true})))
		once := func(b B, p []V) []V {
			return b.Multi("foreign", p, nil, ir.A("symbol", "f"), ir.A("library", "libf.so"), ir.A("results", []string{"f32[3]"})).Results
		}
		same := func(b B, p []V) []V { return p }
		return b.Multi("if", []V{pred, x}, []*ir.Block{region(b, []V{x}, once), region(b, []V{x}, same)}).Results[0]
	})
	require.Error(t, err)
	assert.Contains(t, err.Error(), "layer block.7: if: @step: its gradient has to run the region again, and foreign in layer block.7")
}

// An integer or a decision stops the gradient silently: it is zero.
func TestDiscreteStops(t *testing.T) {
	m := ir.NewModule("m")
	f := m.NewFunc("step")
	x := f.Body.AddParam("x", ir.T(dtype.F32, 3))
	b := ir.NewBuilder(ops.Table(), f.Body, ir.Loc{Layer: "l"})
	y := b.Op("convert", []V{b.Op("convert", []V{b.Op("floor", []V{x})}, ir.A("to", dtype.I32))}, ir.A("to", dtype.F32))
	loss := b.Op("reduce", []V{y}, ir.A("kind", "sum"), ir.A("axes", []int64{0}))
	f.Body.Results, f.Results = b.Multi("gradient", []V{loss, x}, nil).Results, []string{"g"}
	require.NoError(t, autodiff.Run(m, ops.Table()))
	out, err := interp.Run(f, []*tensor.Tensor{tensor.Of([]float32{1.5, 2.5, -3}, 3)})
	require.NoError(t, err)
	assert.Equal(t, []float32{0, 0, 0}, out[0].F32())
}

// A gradient by an inner value, by one value twice, and by two nested ones.
func TestGradientOfInnerValues(t *testing.T) {
	m := ir.NewModule("m")
	f := m.NewFunc("step")
	x := f.Body.AddParam("x", ir.T(dtype.F32))
	b := ir.NewBuilder(ops.Table(), f.Body, ir.Loc{Layer: "l"})
	h := b.Op("mul", []V{x, x})
	y := b.Op("mul", []V{h, h})
	f.Body.Results, f.Results = b.Multi("gradient", []V{y, h, x, h, y}, nil).Results, []string{"h", "x", "again", "y"}
	require.NoError(t, autodiff.Run(m, ops.Table()))
	require.NoError(t, ir.Verify(m))
	out, err := interp.Run(f, []*tensor.Tensor{tensor.Of([]float32{3})})
	require.NoError(t, err)
	for i, want := range []float32{18, 108, 18, 1} {
		assert.Equal(t, want, out[i].F32()[0])
	}
}

// A top-k in a loop that is differentiated as a loop, or in a branch, runs in the forward
// program only.
func TestDecisionsAreMadeOnce(t *testing.T) {
	tab := ops.Table()
	seen := 0
	for _, c := range controlCases() {
		if !strings.HasSuffix(c.name, "/decides") {
			continue
		}
		f := program(t, tab, c, false, 1).Func("step")
		f.Body.Walk(func(op *ir.Op) {
			if op.Name() == "top_k" {
				assert.NotContains(t, op.Loc.Prov, "vjp", c.name)
				seen++
			}
		})
	}
	assert.Equal(t, 2+1+1+1, seen, "two turns unrolled, a loop, two branches")
}
