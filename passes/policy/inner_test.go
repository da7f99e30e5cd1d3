package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/ops"
	"reprise/passes/policy"
	"reprise/planner"
)

// control has a loop of 40 turns, which is not unrolled, an if, and a print. The loop hands on x (what gelu in it
// makes, stacked for the backward part); what tanh makes lives inside of a turn.
const control = `module "control"

func @step(%x: f32[64,32] {feed="normal", role="input"}, %n: i32[] {feed="uniform_int:3", role="input"}, %w: f32[32,32] {role="param"}, %v: f32[32,32] {role="param"}) -> (loss, w, v) {
  %zero = constant {value=dense(i32[]: 0)} : i32[] loc(loop)
  %x0 = contract %x, %v {lhs_contract=[1], rhs_contract=[0]} : f32[64,32] loc(embed)
  print %x0 {message="embedded"} loc(log)
  %i, %y, %ww = while %zero, %x0, %w : i32[], f32[64,32], f32[32,32] loc(loop) (%i0: i32[], %xc: f32[64,32], %w0: f32[32,32]) {
    %turns = constant {value=dense(i32[]: 40)} : i32[] loc(loop.cond)
    %c = compare %i0, %turns {dir="lt"} : bool[] loc(loop.cond)
    yield %c
  } (%i1: i32[], %x1: f32[64,32], %w1: f32[32,32]) {
    %one = constant {value=dense(i32[]: 1)} : i32[] loc(loop.body)
    %i2 = add %i1, %one : i32[] loc(loop.body)
    %h = contract %x1, %w1 {lhs_contract=[1], rhs_contract=[0]} : f32[64,32] loc(loop.body.fc)
    %x2 = tanh %h : f32[64,32] {name="act"} loc(loop.body.act)
    %s = gelu %x2 : f32[64,32] {name="turn"} loc(loop.body.gelu)
    yield %i2, %s, %w1
  }
  %p0 = constant {value=dense(i32[]: 1)} : i32[] loc(gate)
  %p = compare %n, %p0 {dir="ge"} : bool[] loc(gate)
  %g = if %p, %y, %v : f32[64,32] loc(gate) (%a0: f32[64,32], %b0: f32[32,32]) {
    %r = contract %a0, %b0 {lhs_contract=[1], rhs_contract=[0]} : f32[64,32] loc(gate.then)
    yield %r
  } (%a1: f32[64,32], %b1: f32[32,32]) {
    %t = logistic %a1 : f32[64,32] {name="closed"} loc(gate.else)
    yield %t
  }
  %e = exp %g : f32[64,32] {name="last"} loc(last)
  %sq = mul %e, %e : f32[64,32] loc(loss)
  %loss = reduce %sq {axes=[0, 1], kind="sum"} : f32[] loc(loss)
  %gw, %gv = gradient %loss, %w, %v : f32[32,32], f32[32,32] loc(grad)
  %lr = constant {value=dense(f32[]: 0.001)} : f32[] loc(opt)
  %nw = sgd %w, %gw, %lr {wd=0.0} : f32[32,32] loc(opt)
  %nv = sgd %v, %gv, %lr {wd=0.0} : f32[32,32] loc(opt)
  return %loss, %nw, %nv
}
`

// TestInsideControl: a rule that names an op inside of a while or an if is about the results that it makes, and its
// report says what that means; one that names what lives inside of a turn only, or gives no value at all, is an error
// that says so.
func TestInsideControl(t *testing.T) {
	m, err := ir.Parse(ops.Table(), "control.ir", control)
	require.NoError(t, err)
	m = grouped(t, m)
	apply := func(rule string) (kinds []string, rep *policy.Report, err error) {
		p := load(t, "", rule)
		pr := problem(t, m, p)
		if rep, err = p.Apply(pr, policy.Options{Alone: true}); err != nil {
			return nil, nil, err
		}
		for i, v := range pr.Values {
			if pr.Problem.Values[i].Policy == planner.MustRecompute {
				kinds = append(kinds, v.Op.Name())
			}
		}
		plan, err := planner.Obey(pr.Problem)
		require.NoError(t, err)
		rep = rep.Finished(pr, policy.OutcomeOf(pr, plan))
		return kinds, rep, nil
	}
	stack := []string{"while", "while"} // what the last turn hands on, and what each did
	for rule, want := range map[string][]string{
		"must recompute layer=loop.body.gelu":        stack,
		"must recompute op=gelu":                     stack,
		"must recompute value=turn":                  stack,
		"must recompute layer=loop.body op=erf":      stack,
		"must recompute layer=gate.then":             {"if"},
		"must recompute op=logistic layer=gate.else": {"if"},
		"must recompute value=closed":                {"if"},
		"must recompute layer=gate.* min_bytes=8KiB": {"if"},
	} {
		kinds, rep, err := apply(rule)
		require.NoError(t, err, rule)
		require.Equal(t, want, kinds, rule)
		require.Equal(t, len(want), rep.Rules[0].Matched, rule)
		require.Contains(t, rep.String(), "made inside of a while, if or case, which runs again, or is kept, as a whole", rule)
		require.Contains(t, rep.String(), " of "+map[string]string{"while": "loop.body.gelu", "if": "gate.then, gate.else"}[want[0]], rule)
	}
	_, rep, err := apply("must recompute value=last")
	require.NoError(t, err)
	require.NotContains(t, rep.String(), "inside of a while")
	for rule, want := range map[string][2]string{
		"must recompute value=act":          {"loop.body.act", "lives inside of one turn or branch of the while of layer loop"},
		"must save op=tanh":                 {"loop.body.act", "runs again, or is kept, as a whole"},
		"must save layer=loop.body.act":     {"loop.body.act", "lives inside"},
		"must recompute layer=log":          {"log", "print of layer log gives no value that could be kept or computed again: it happens once"},
		"must recompute op=print layer=l?g": {"log", "happens once"},
	} {
		_, _, err := apply(rule)
		e := diag.As(err)
		require.NotNil(t, e, rule)
		require.Equal(t, want[0], e.Layer)
		require.Contains(t, e.Message, want[1])
		require.NotEmpty(t, e.Hint)
	}
}
