package interp_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
)

const source = `
module "m"

func @square(%v: f32[2]) -> (y) {
  %w = mul %v, %v : f32[2] loc(sq)
  return %w
}

func @step(%x: f32[2], %n: i32[]) -> (out, turns) {
  %s = call %x {callee="square"} : f32[2] loc(outer)
  %zero = constant {value=dense(i32[]: 0)} : i32[] loc(loop)
  %i, %m, %h = while %zero, %n, %s : i32[], i32[], f32[2] loc(loop) (%i1: i32[], %n1: i32[], %h1: f32[2]) {
    %go = compare %i1, %n1 {dir="lt"} : bool[] loc(loop)
    yield %go
  } (%i2: i32[], %n2: i32[], %h2: f32[2]) {
    %one = constant {value=dense(i32[]: 1)} : i32[] loc(loop)
    %j = add %i2, %one : i32[] loc(loop)
    %d = add %h2, %h2 : f32[2] loc(loop.body)
    yield %j, %n2, %d
  }
  return %h, %i
}
`

func step(t *testing.T) *ir.Func {
	t.Helper()
	m, err := ir.Parse(ops.Table(), "m.ir", source)
	require.NoError(t, err)
	return m.Func("step")
}

func TestRun(t *testing.T) {
	x := tensor.Of([]float32{1, 3}, 2)
	out, err := interp.RunNamed(step(t), map[string]*tensor.Tensor{"x": x, "n": tensor.Of([]int32{3}).Reshaped()}, interp.Options{})
	require.NoError(t, err)
	assert.Equal(t, []float32{8, 72}, out["out"].F32())
	assert.Equal(t, []int32{3}, out["turns"].I32())
	assert.Equal(t, []float32{1, 3}, x.F32(), "arguments are not changed")
}

// The trace has every value in execution order, with the regions and calls around it.
func TestTrace(t *testing.T) {
	f := step(t)
	args := []*tensor.Tensor{tensor.Of([]float32{1, 3}, 2), tensor.Of([]int32{2}).Reshaped()}
	_, trace, err := interp.Trace(f, args)
	require.NoError(t, err)
	count := map[string]int{}
	for _, e := range trace {
		count[e.Path+e.V.Name]++
	}
	loop := f.Body.Ops[2]
	path := "while." + string('0'+rune(loop.ID)) + "/"
	assert.Equal(t, 1, count["x"])
	assert.Equal(t, 1, count["@square/w"])
	assert.Equal(t, 3, count[path+"go"], "the condition runs once more than the body")
	assert.Equal(t, 2, count[path+"d"])
	assert.Equal(t, "h", trace[len(trace)-1].V.Name)
	_, again, err := interp.Trace(f, args)
	require.NoError(t, err)
	for i := range trace {
		assert.Equal(t, trace[i].Hash, again[i].Hash)
	}
}

func TestErrors(t *testing.T) {
	f := step(t)
	_, err := interp.Run(f, nil)
	assert.EqualError(t, err, "@step: 0 arguments for 2 parameters")
	_, err = interp.Run(f, []*tensor.Tensor{tensor.Of([]float64{1, 3}, 2), tensor.Of([]int32{2}).Reshaped()})
	assert.EqualError(t, err, "@step: argument 0: %x is f64[2], its type is f32[2]")
	_, err = interp.RunNamed(f, map[string]*tensor.Tensor{"x": tensor.Of([]float32{1, 3}, 2)}, interp.Options{})
	assert.EqualError(t, err, `@step: no argument for parameter "n" (i32[])`)

	m, err := ir.Parse(ops.Table(), "m.ir", `
module "m"

func @step(%x: f32[], %y: f32[]) -> (g) {
  %g = gradient %x, %y : f32[] loc(layers.3)
  return %g
}
`)
	require.NoError(t, err)
	_, err = interp.Run(m.Func("step"), []*tensor.Tensor{tensor.Of([]float32{1}).Reshaped(), tensor.Of([]float32{1}).Reshaped()})
	assert.EqualError(t, err, "layer layers.3: gradient: @step: no reference semantics: autodiff")
}
