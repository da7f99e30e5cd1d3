package passes_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/passes"
)

// marked lists names (and "!" for pins) of a function's values in memory, by layer, in order.
func marked(f *ir.Func) []string {
	var out []string
	for _, op := range f.Body.Ops {
		for _, v := range op.Results {
			if !v.Marked() {
				continue
			}
			s := op.Loc.Layer + ":" + v.Attrs.Str("name")
			if v.Attrs.Bool("pin") {
				s += "!"
			}
			out = append(out, s)
		}
	}
	return out
}

// TestMarksSurvive: names and pins go through every pass, each on a value that exists in memory: an activation that
// would be computed again in its readers, a value with one reader, one inside a softmax that is written in parts, a dropout that does nothing,
// equal computations with two names, a softmax that is expanded, and a view.
func TestMarksSurvive(t *testing.T) {
	mod, err := nn.Train(nn.Model{Name: "marks", Loss: func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{16, 64}, nn.Normal01)
		h := s.Linear("fc", x, 64)
		act := nn.Name(s.In("act").Gelu(h), "act")
		one := nn.Pin(nn.Name(s.In("one").Scale(act, 2), "one"))
		// A softmax in parts, with a name on its numerator.
		sm := s.In("softmax")
		e := nn.Name(sm.Exp(sm.Sub(one, sm.Op("broadcast", []*nn.Tensor{sm.Op("reduce", []*nn.Tensor{one}, ir.A("kind", "max"), ir.A("axes", []int64{1}))}, ir.A("dims", []int64{0}), ir.A("shape", []int64{16, 64})))), "numerator")
		p := sm.Div(e, sm.Op("broadcast", []*nn.Tensor{sm.Op("reduce", []*nn.Tensor{e}, ir.A("kind", "sum"), ir.A("axes", []int64{1}))}, ir.A("dims", []int64{0}), ir.A("shape", []int64{16, 64})))
		none := nn.Name(s.In("none").Dropout(p, 0), "kept")
		a, b := nn.Name(s.In("a").Tanh(none), "a"), nn.Name(s.In("b").Tanh(none), "b")
		soft := nn.Name(s.In("soft").Softmax(s.Add(a, b)), "soft")
		view := nn.Name(s.In("view").Reshape(soft, 4, 256), "view")
		return s.In("loss").MSE(s.Linear("out", view, 8), s.Input("t", dtype.F32, []int64{4, 8}, nn.Normal01))
	}}, nn.Recipe{Optimizer: nn.SGD{}, Schedule: nn.Constant{LR: 0.1}})
	require.NoError(t, err)
	text := mod.String()
	require.Contains(t, text, `: f32[16,64] {name="one", pin=true} loc(one`)
	again, err := ir.Parse(ops.Table(), "marks.ir", text)
	require.NoError(t, err)
	require.Equal(t, text, again.String())
	require.NoError(t, passes.Run(mod, ops.Table(), passes.Options{}))
	require.Equal(t, []string{"act:act", "one:one!", "softmax:numerator", "softmax:kept", "a:a,b", "soft:soft", "view:view"}, marked(mod.Func("step")))
	text = mod.String()
	again, err = ir.Parse(ops.Table(), "marks.ir", text)
	require.NoError(t, err)
	require.Equal(t, text, again.String())
	clone := mod.Clone()
	require.Equal(t, text, clone.String())
}

// TestMarkErrors: marks that can't be are refused with the layer, or the place in the text.
func TestMarkErrors(t *testing.T) {
	train := func(f func(s *nn.Scope, x *nn.Tensor) *nn.Tensor) error {
		_, err := nn.Train(nn.Model{Name: "m", Loss: func(s *nn.Scope) *nn.Tensor {
			x := s.Input("x", dtype.F32, []int64{4, 4}, nn.Normal01)
			return s.MeanAll(f(s, s.Linear("fc", x, 4)))
		}}, nn.Recipe{Optimizer: nn.SGD{}, Schedule: nn.Constant{LR: 0.1}})
		return err
	}
	err := train(func(s *nn.Scope, x *nn.Tensor) *nn.Tensor { return nn.Name(x, "a b") })
	require.ErrorContains(t, err, `"a b" can't be the name of a value`)
	require.Equal(t, "fc", diag.As(err).Layer)
	err = train(func(s *nn.Scope, x *nn.Tensor) *nn.Tensor { return nn.Name(x, "12") })
	require.ErrorContains(t, err, "not digits alone")
	err = train(func(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
		nn.Pin(s.Param("w2", []int64{4}, nn.Zeros))
		return x
	})
	require.ErrorContains(t, err, `"w2" is a param of the step`)
	const module = "module \"m\"\nfunc @step(%x: f32[4]) -> (y) {\n  %y = tanh %x : f32[4] MARK loc(l)\n  return %y\n}\n"
	for mark, want := range map[string]string{
		"{name=3}":         "m.ir:3:25: a result may have name=\"…\" and pin=true, not name",
		"{colour=\"red\"}": "not colour",
		"{pin=\"yes\"}":    "not pin",
	} {
		_, err := ir.Parse(ops.Table(), "m.ir", strings.Replace(module, "MARK", mark, 1))
		require.ErrorContains(t, err, want)
	}
}

// loop is a training step with a loop of n turns, in which one value is named and one pinned.
func loop(n int) string {
	return strings.ReplaceAll(`module "loop"

func @step(%x: f32[16,8] {feed="normal", role="input"}, %w: f32[8,8] {role="param"}) -> (loss, w) {
  %zero = constant {value=dense(i32[]: 0)} : i32[] loc(loop)
  %i, %y, %ww = while %zero, %x, %w : i32[], f32[16,8], f32[8,8] loc(loop) (%i0: i32[], %x0: f32[16,8], %w0: f32[8,8]) {
    %turns = constant {value=dense(i32[]: TURNS)} : i32[] loc(loop.cond)
    %c = compare %i0, %turns {dir="lt"} : bool[] loc(loop.cond)
    yield %c
  } (%i1: i32[], %x1: f32[16,8], %w1: f32[8,8]) {
    %one = constant {value=dense(i32[]: 1)} : i32[] loc(loop.body)
    %i2 = add %i1, %one : i32[] loc(loop.body)
    %h = contract %x1, %w1 {lhs_contract=[1], rhs_contract=[0]} : f32[16,8] loc(loop.body.fc)
    %a = tanh %h : f32[16,8] {name="act"} loc(loop.body.act)
    %p = exp %a : f32[16,8] {pin=true} loc(loop.body.pinned)
    %s = mul %p, %a : f32[16,8] loc(loop.body.out)
    yield %i2, %s, %w1
  }
  %sq = mul %y, %y : f32[16,8] loc(loss)
  %loss = reduce %sq {axes=[0, 1], kind="sum"} : f32[] loc(loss)
  %gw = gradient %loss, %w : f32[8,8] loc(grad)
  %lr = constant {value=dense(f32[]: 0.001)} : f32[] loc(opt)
  %nw = sgd %w, %gw, %lr {wd=0.0} : f32[8,8] loc(opt)
  return %loss, %nw
}
`, "TURNS", fmt.Sprint(n))
}

// TestMarksInLoops: names and pins inside of a loop survive: in each turn of one that is unrolled, and in the body of one that
// is not. What is pinned there the backward loop does not compute again.
func TestMarksInLoops(t *testing.T) {
	mod, err := ir.Parse(ops.Table(), "loop.ir", loop(3))
	require.NoError(t, err)
	require.NoError(t, passes.Run(mod, ops.Table(), passes.Options{}))
	require.Equal(t, slices.Repeat([]string{"loop.body.act:act", "loop.body.pinned:!"}, 3), marked(mod.Func("step")))

	mod, err = ir.Parse(ops.Table(), "loop.ir", loop(40))
	require.NoError(t, err)
	require.NoError(t, passes.Run(mod, ops.Table(), passes.Options{}))
	runs := map[string]int{}
	var marks []string
	mod.Func("step").Body.Walk(func(op *ir.Op) {
		runs[op.Name()]++
		for _, v := range op.Results {
			if v.Marked() && op.Block.Owner.Name() == "while" {
				marks = append(marks, op.Loc.String())
			}
		}
	})
	require.Equal(t, []string{"loop.body.act", "loop.body.pinned"}, marks)
	require.Equal(t, 2, runs["while"])
	require.Equal(t, 1, runs["exp"], "the pinned op runs again in the backward loop")
	require.Equal(t, 2, runs["tanh"])
}

// TestMarksInCalls: names and pins of a function survive where it is called, whether or not a gradient passes through.
func TestMarksInCalls(t *testing.T) {
	for name, rest := range map[string]string{
		"inference": "-> (y) {\n  %y = call %x {callee=\"block\"} : f32[8,8] loc(layers.0)\n  %z = exp %y : f32[8,8] loc(out)\n  return %z\n}\n",
		"training": `-> (loss, gx) {
  %y = call %x {callee="block"} : f32[8,8] loc(layers.0)
  %z = exp %y : f32[8,8] loc(out)
  %loss = reduce %z {axes=[0, 1], kind="sum"} : f32[] loc(loss)
  %gx = gradient %loss, %x : f32[8,8] loc(grad)
  return %loss, %gx
}
`} {
		mod, err := ir.Parse(ops.Table(), "calls.ir", `module "calls"

func @block(%a: f32[8,8]) -> (out) {
  %h = contract %a, %a {lhs_contract=[1], rhs_contract=[0]} : f32[8,8] loc(fc)
  %t = tanh %h : f32[8,8] {name="act", pin=true} loc(act)
  %u = mul %t, %a : f32[8,8] loc(gate)
  return %u
}

func @step(%x: f32[8,8] {feed="normal", role="input"}) `+rest)
		require.NoError(t, err, name)
		require.NoError(t, passes.Run(mod, ops.Table(), passes.Options{}), name)
		require.Equal(t, []string{"act:act!"}, marked(mod.Func("step")), name)
	}
}
