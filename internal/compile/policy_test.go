package compile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/internal/compile"
	"reprise/internal/testprog"
	"reprise/passes/policy"
)

func rules(t testing.TB, name string, lines ...string) *policy.Policy {
	t.Helper()
	p, err := policy.Load(name)
	require.NoError(t, err)
	p, err = p.With(lines...)
	require.NoError(t, err)
	return p
}

// tried are the policies of the tests below, each with a reason to be there.
func tried(t testing.TB) []*policy.Policy {
	return []*policy.Policy{
		rules(t, "full"),
		rules(t, "dots_saveable"),
		rules(t, "selective:op"),
		rules(t, "selective:2"),
		rules(t, "uniform:2"),
		rules(t, "block:1"),
		rules(t, "memory_budget:0.3"),
		rules(t, "", "must recompute min_bytes=1KiB"),
		rules(t, "full", "must save op=contract", "prefer recompute layer=layers.1.*"),
		rules(t, "every:2", "budget layer=layers.1 2KiB"),
	}
}

// TestPoliciesKeepBits: the same loss and state, bit for bit, under every policy, with and without a budget.
func TestPoliciesKeepBits(t *testing.T) {
	all := small()
	specs := []string{all[1], all[3], all[6]} // gpt, cnn, moe
	for k, spec := range specs {
		t.Run(name(spec), func(t *testing.T) {
			m := testprog.Load(t, spec, true)
			want := lab.Compile(t, m, compile.Options{}).Run(t, 3, 2)
			list := tried(t)
			if !testprog.Long() {
				list = []*policy.Policy{list[[]int{8, 0, 2}[k]]}
			}
			for _, p := range list {
				budgets := []compile.Budget{{}}
				if testprog.Long() {
					budgets = append(budgets, compile.Budget{Min: true})
				}
				for _, b := range budgets {
					prog := lab.Compile(t, m, compile.Options{Policy: p, Budget: b})
					require.Equal(t, want, prog.Run(t, 3, 1), "%s at %v", p.Name(), b)
					require.NotNil(t, prog.Report.Policy)
				}
			}
		})
	}
}

func plan(t testing.TB, spec string, train bool, o compile.Options) *compile.Program {
	t.Helper()
	o.NoMinimum, o.PlanSteps = true, sweepSteps
	p, err := compile.Plan(context.Background(), testprog.Load(t, spec, train), o)
	require.NoError(t, err)
	return p
}

// TestP063SamePlan: planned again and again, a policy gives the same plan and report, byte for byte.
func TestP063SamePlan(t *testing.T) {
	times := 4
	if testprog.Long() {
		times = 20
	}
	for _, o := range []compile.Options{
		{Policy: rules(t, "selective:op", "budget layer=layers.0 48KiB", "must save op=attention")},
		{Policy: rules(t, "full"), Budget: compile.Budget{Percent: 90}},
	} {
		first := ""
		for range times {
			p := plan(t, small()[1], true, o)
			text, err := p.PlanJSON()
			require.NoError(t, err)
			report, err := json.Marshal(p.Report.Policy)
			require.NoError(t, err)
			text = withoutTimes(text) + string(report)
			if first == "" {
				first = text
			}
			require.Equal(t, first, text)
		}
	}
}

// withoutTimes leaves out the lines that say how long planning took.
func withoutTimes(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "seconds\"") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestInferenceHasNoTraceOfPolicies: an inference library has the same bytes with a policy and without.
func TestInferenceHasNoTraceOfPolicies(t *testing.T) {
	m := testprog.Load(t, small()[0], false)
	bytes := func(p *policy.Policy) []byte {
		b, err := os.ReadFile(lab.Compile(t, m, compile.Options{Policy: p, Budget: compile.Budget{Percent: 100}}).Library)
		require.NoError(t, err)
		return b
	}
	require.Equal(t, bytes(nil), bytes(rules(t, "full", "must save op=no_such_op")))
}

// TestPolicyReport: which lines decide is in the report and is the reason of the values; the peaks order as
// they must: full below none, and every plan is the policy's, not a cheaper one.
func TestPolicyReport(t *testing.T) {
	spec := "builtin:gpt,layers=4,d=32,heads=2,seq=32,batch=4,vocab=40,dropout=0"
	none := plan(t, spec, true, compile.Options{})
	full := plan(t, spec, true, compile.Options{Policy: rules(t, "full", "must save op=attention layer=layers.2.*")})
	third := plan(t, spec, true, compile.Options{Policy: rules(t, "every:3")})
	require.Less(t, full.Report.ArenaBytes, third.Report.ArenaBytes)
	require.Less(t, third.Report.ArenaBytes, none.Report.ArenaBytes)
	require.Zero(t, none.Report.Recomputed)
	// Layers 0 and 3 of four: half of what all four take.
	whole := plan(t, spec, true, compile.Options{Policy: rules(t, "full")})
	require.Equal(t, whole.Report.Recomputed, 2*third.Report.Recomputed)
	require.Equal(t, whole.Report.LowerBoundNs, whole.Report.CostNs, "the policy's plan is proven to be the least that obeys it")
	again := map[string]bool{}
	reasons := map[string]int{}
	for _, v := range third.Values {
		if v.Fate == compile.FateRecomputed {
			again[strings.Join(strings.Split(v.Layer, ".")[:2], ".")] = true
			require.Contains(t, v.Reason, "must be recomputed: policy --policy:1")
		}
	}
	require.Equal(t, map[string]bool{"layers.0": true, "layers.3": true}, again)
	for _, v := range full.Values {
		if strings.Contains(v.Reason, "must be saved: policy --rule:1") {
			reasons[v.Layer]++
		}
	}
	require.Equal(t, map[string]int{"layers.2.attn": 2}, reasons)
	require.Len(t, full.Report.Policy.Rules, 2)
	require.Positive(t, full.Report.Policy.Rules[0].FreedBytes)
}

// TestUnmeetableUnderPolicy: the error names the lines that have a say, and what would do without them.
func TestUnmeetableUnderPolicy(t *testing.T) {
	spec := "builtin:gpt,layers=2,d=32,heads=2,seq=32,batch=4,vocab=40,dropout=0"
	_, err := compile.Plan(context.Background(), testprog.Load(t, spec, true), compile.Options{NoMinimum: true, PlanSteps: sweepSteps,
		Policy: rules(t, "", "must save layer=layers.*.mlp", "must save op=attention"), Budget: compile.Budget{Percent: 60}})
	var b *compile.BudgetError
	require.True(t, errors.As(err, &b), "%v", err)
	require.Contains(t, err.Error(), "the policy has a say in it: --rule:1 (must save layer=layers.*.mlp: ")
	require.Contains(t, err.Error(), "--rule:2 (must save op=attention: 4 values)")
	require.Contains(t, err.Error(), "without the policy the smallest budget found is ")
	require.Contains(t, err.Error(), "must be saved: policy --rule:")
}

// TestComparePolicy: under the policy and in the same bytes without it; ours is never dearer.
func TestComparePolicy(t *testing.T) {
	spec := "builtin:gpt,layers=2,d=32,heads=2,seq=32,batch=4,vocab=40,dropout=0"
	c, err := compile.ComparePolicy(context.Background(), testprog.Load(t, spec, true), compile.Options{Policy: rules(t, "dots_saveable"), PlanSteps: sweepSteps})
	require.NoError(t, err)
	require.LessOrEqual(t, c.SameBytes.CostNs, c.UnderPolicy.CostNs)
	require.LessOrEqual(t, c.SameBytes.ArenaBytes, c.UnderPolicy.ArenaBytes)
	require.Positive(t, c.UnderPolicy.Recomputed)
	if c.SameOverhead != nil {
		require.LessOrEqual(t, c.SameOverhead.CostNs, c.UnderPolicy.CostNs)
		require.Less(t, c.SameOverhead.ArenaBytes, c.UnderPolicy.ArenaBytes)
	}
	_, err = compile.ComparePolicy(context.Background(), testprog.Load(t, spec, false), compile.Options{Policy: rules(t, "full")})
	require.ErrorContains(t, err, "no backward part")
	_, err = compile.ComparePolicy(context.Background(), testprog.Load(t, spec, true), compile.Options{})
	require.ErrorContains(t, err, "no policy to compare with")
}

// TestFrozenCostsNothing (P053's kin): parameters that are not trained and inputs are in memory anyway; no rule counts
// them, and a rule about them says so.
func TestFrozenCostsNothing(t *testing.T) {
	_, err := compile.Plan(context.Background(), testprog.Load(t, small()[1], true), compile.Options{NoMinimum: true, PlanSteps: sweepSteps,
		Policy: rules(t, "", "must save value=tokens")})
	require.ErrorContains(t, err, "tokens is an input: it is in memory from start to end")
}

// TestPolicyFromFile: a file's lines are named by file and line.
func TestPolicyFromFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.policy")
	require.NoError(t, os.WriteFile(file, []byte("# all layers\nuse full\n\nmust save op=attentoin # a slip\n"), 0o666))
	p, err := policy.Load(file)
	require.NoError(t, err)
	_, err = compile.Plan(context.Background(), testprog.Load(t, small()[1], true), compile.Options{NoMinimum: true, PlanSteps: sweepSteps, Policy: p})
	require.EqualError(t, err, file+":4: rule \"must save op=attentoin\" matches nothing: no op \"attentoin\"\n  hint: did you mean attention?")
}

// TestRegionBudgetInPlan: within a budget, a bound on what is kept of a region is the planner's to use: one that its
// plan keeps costs nothing, and a tighter one is kept to the byte.
func TestRegionBudgetInPlan(t *testing.T) {
	at := func(n int64) *compile.Report {
		line := fmt.Sprintf("budget layer=layers.0 %d", n)
		return &plan(t, small()[1], true, compile.Options{Budget: compile.Budget{Percent: 90}, Policy: rules(t, "", line)}).Report
	}
	wide := at(1 << 40)
	kept := wide.Policy.Rules[0].KeptBytes
	require.Positive(t, kept)
	just := at(kept)
	require.Equal(t, kept, just.Policy.Rules[0].KeptBytes)
	require.Equal(t, wide.CostNs, just.CostNs, "a bound that is kept anyway costs something")
	tight := at(kept / 2)
	require.LessOrEqual(t, tight.Policy.Rules[0].KeptBytes, kept/2)
	require.Less(t, wide.CostNs, tight.CostNs)
	require.LessOrEqual(t, tight.LowerBoundNs, tight.CostNs)
	require.Contains(t, tight.Policy.Rules[0].First[0], "layers.0")
	require.Equal(t, kept/2, *tight.Policy.Rules[0].AllowedBytes)
}
