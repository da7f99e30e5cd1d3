package planner

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	randv2 "math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chainStep is a step of n layers: forward a_0 … a_{n-1}, loss, backward g_{n-1} … g_0, where g_k reads
// a_{k-1} and g_{k+1}. Every op costs 10 and makes 8 bytes; x is resident.
func chainStep(n int) *Problem {
	p := &Problem{Values: []Value{{Name: "x", Bytes: 8, Resident: true}}}
	add := func(name string, inputs ...int) int {
		v := len(p.Values)
		p.Values = append(p.Values, Value{Name: name, Bytes: 8})
		p.Ops = append(p.Ops, Op{Name: name, Cost: 10, Inputs: inputs, Outputs: []int{v}, Det: DetExact})
		return v
	}
	acts := []int{0}
	for k := range n {
		acts = append(acts, add(fmt.Sprintf("a%d", k), acts[k]))
	}
	loss := add("loss", acts[n])
	p.Gates = []int{len(p.Ops)}
	g := add("dloss", acts[n], loss)
	for k := n - 1; k >= 0; k-- {
		g = add(fmt.Sprintf("g%d", k), acts[k], g)
	}
	p.Values[g].Output = true
	return p
}

func value(t *testing.T, p *Problem, name string) int {
	for i := range p.Values {
		if p.Values[i].Name == name {
			return i
		}
	}
	t.Fatalf("no value %s", name)
	return -1
}

// TestObeyIsExactlyThePolicy: what must be recomputed is, once, right before its first backward reader, with
// its cost proven to be the least.
func TestObeyIsExactlyThePolicy(t *testing.T) {
	p := chainStep(4)
	for _, name := range []string{"a1", "a2"} {
		p.Values[value(t, p, name)].Policy = MustRecompute
	}
	plan, err := Obey(p)
	require.NoError(t, err)
	names := ""
	for _, i := range plan.Order {
		names += p.Ops[i].Name + " "
	}
	require.Equal(t, "a0 a1 a2 a3 loss dloss a1 a2 g3 g2 g1 g0 ", names)
	require.EqualValues(t, 20, plan.Cost-plan.BaseCost)
	require.Equal(t, plan.Cost, plan.LowerBound)
	// What only the gate reads stays to the gate.
	p = chainStep(2)
	p.Values[value(t, p, "a1")].Policy = MustRecompute
	plan, err = Obey(p)
	require.NoError(t, err)
	require.Equal(t, plan.BaseCost, plan.Cost)
}

// TestGatesInCheck: a plan that keeps what must be recomputed is rejected, with both places.
func TestGatesInCheck(t *testing.T) {
	p := chainStep(3)
	p.Values[value(t, p, "a0")].Policy = MustRecompute
	_, err := Check(p, &Plan{Order: p.order()}, -1)
	var v *Violation
	require.ErrorAs(t, err, &v)
	require.Equal(t, RulePolicy, v.Rule)
	require.ErrorContains(t, err, `value 1 "a0" must be recomputed, but it is kept from position 0 to 6, across a gate`)
	// Recomputing it early and keeping the copy is no way around.
	_, err = Check(p, &Plan{Order: []int{0, 1, 2, 0, 3, 4, 5, 6, 7}}, -1)
	require.ErrorAs(t, err, &v)
	require.Equal(t, RulePolicy, v.Rule)
	_, err = Check(p, &Plan{Order: []int{0, 1, 2, 3, 4, 0, 5, 6, 7}}, -1)
	require.NoError(t, err)
	// Without gates the rule is about the number of runs.
	p.Gates = nil
	_, err = Check(p, &Plan{Order: p.order()}, -1)
	require.ErrorAs(t, err, &v)
	_, err = Check(p, &Plan{Order: []int{0, 1, 2, 0, 3, 4, 5, 6, 7}}, -1)
	require.NoError(t, err)
}

// TestGatesOfMicroBatches: a value that two backward parts read is computed again for each; the file format keeps the gates.
func TestGatesOfMicroBatches(t *testing.T) {
	p := &Problem{Values: []Value{{Name: "x", Bytes: 8, Resident: true}}}
	add := func(name string, inputs ...int) int {
		p.Values = append(p.Values, Value{Name: name, Bytes: 8})
		p.Ops = append(p.Ops, Op{Name: name, Cost: 10, Inputs: inputs, Outputs: []int{len(p.Values) - 1}, Det: DetExact})
		return len(p.Values) - 1
	}
	cast := add("cast", 0)
	f0 := add("f0", cast)
	p.Gates = append(p.Gates, len(p.Ops))
	g0 := add("g0", f0)
	b0 := add("b0", g0, cast)
	f1 := add("f1", cast)
	p.Gates = append(p.Gates, len(p.Ops))
	g1 := add("g1", f1)
	b1 := add("b1", g1, cast, b0)
	p.Values[b1].Output = true
	p.Values[cast].Policy = MustRecompute
	plan, err := Obey(p)
	require.NoError(t, err)
	runs := 0
	for _, i := range plan.Order {
		if p.Ops[i].Name == "cast" {
			runs++
		}
	}
	require.Equal(t, 3, runs, "for the forward part, the first backward part (and the second forward), the second backward")
	require.EqualValues(t, 20, plan.Cost-plan.BaseCost)
	var b strings.Builder
	require.NoError(t, WriteGraph(&b, p))
	g, err := ReadGraph(strings.NewReader(b.String()))
	require.NoError(t, err)
	require.Equal(t, p.Gates, g.Problem.Gates)
	_, err = ReadGraph(strings.NewReader(strings.Replace(b.String(), "\"gates\":[2,5]", "\"gates\":[2,50]", 1)))
	require.ErrorContains(t, err, "gate 1 is op 50; there are ops 0 to 6")
}

// TestGatesWithLink: where values can be moved to the host, musts of both kinds hold, at every budget.
func TestGatesWithLink(t *testing.T) {
	p := chainStep(6)
	p.Offload = &Offload{BytesPerNsOut: 4, BytesPerNsIn: 4, HostBytes: 1 << 20}
	p.Values[value(t, p, "a1")].Policy = MustRecompute
	p.Values[value(t, p, "a2")].Policy = MustOffload
	for _, b := range []int64{0, 48, 40} {
		plan, err := Solve(context.Background(), p, Options{Budget: b, Steps: 20_000})
		require.NoError(t, err)
		rep, err := Check(p, plan, -1)
		require.NoError(t, err)
		require.Equal(t, 1, rep.Recomputed)
		if b > 0 {
			require.LessOrEqual(t, rep.PeakBytes, b)
		}
	}
}

// TestMustRecomputeOfWhatRunsOnce is refused with both names.
func TestMustRecomputeOfWhatRunsOnce(t *testing.T) {
	p := chainStep(3)
	p.Values[value(t, p, "a1")].Policy = MustRecompute
	p.Ops[1].Det = DetDecides
	for _, solve := range []func() error{
		func() error { _, err := Solve(context.Background(), p, Options{}); return err },
		func() error { _, err := MinBudget(context.Background(), p); return err },
		func() error { _, err := Obey(p); return err },
	} {
		var e *ProblemError
		require.ErrorAs(t, solve(), &e)
		require.ErrorContains(t, e, `value 2 "a1" must be recomputed, but op 1 "a1" runs once: its determinism is decides`)
	}
}

// TestPoliciesHoldEverywhere: random steps with random policies, at budgets from the least to all:
// every plan of every entry point passes Check, musts included, baselines as well; and what can't be met says so.
func TestPoliciesHoldEverywhere(t *testing.T) {
	r := rand.New(rand.NewSource(5))
	again, planned := 0, 0
	for trial := range 16 {
		p := randomStep(r, 4+r.Intn(14))
		for v := range p.Values {
			if !p.Values[v].Resident && !p.Values[v].Output && r.Intn(2) == 0 {
				p.Values[v].Policy = []Policy{MustSave, MustRecompute, MustRecompute, PreferSave, PreferRecompute}[r.Intn(5)]
			}
		}
		obey, err := Obey(p)
		var pe *ProblemError
		if errors.As(err, &pe) {
			require.Error(t, recomputable(p), "trial %d: %v", trial, err)
			continue
		}
		require.NoError(t, err)
		_, err = Check(p, obey, -1)
		require.NoError(t, err)
		require.LessOrEqual(t, obey.LowerBound, obey.Cost)
		least, err := MinBudget(context.Background(), p)
		require.NoError(t, err, "trial %d", trial)
		_, err = Check(p, least, least.BudgetBytes)
		require.NoError(t, err)
		require.LessOrEqual(t, least.PeakBytes, obey.PeakBytes)
		for _, b := range []int64{least.BudgetBytes, (least.BudgetBytes + obey.PeakBytes) / 2, obey.PeakBytes, 2 * obey.PeakBytes} {
			plan, err := Solve(context.Background(), p, Options{Budget: b, Steps: 4_000})
			require.NoError(t, err, "trial %d", trial)
			rep, err := Check(p, plan, b)
			require.NoError(t, err)
			require.LessOrEqual(t, plan.LowerBound, rep.Cost)
			again += rep.Recomputed
			planned++
		}
		baselinesAreLegal(t, p, trial)
	}
	require.Greater(t, planned, 20)
	require.Greater(t, again, 20)
}

// randomStep is a random forward part of n ops and its backward part.
func randomStep(r *rand.Rand, n int) *Problem {
	p := &Problem{Values: []Value{{Name: "x", Bytes: 8, Resident: true}}}
	add := func(name string, inputs ...int) int {
		v := len(p.Values)
		p.Values = append(p.Values, Value{Name: name, Bytes: int64(1 + r.Intn(16))})
		det := DetExact
		if r.Intn(12) == 0 {
			det = DetDecides
		}
		p.Ops = append(p.Ops, Op{Name: name, Cost: int64(1 + r.Intn(20)), Inputs: inputs, Outputs: []int{v}, Det: det})
		return v
	}
	for k := range n {
		in := []int{len(p.Values) - 1}
		if w := r.Intn(len(p.Values)); w != in[0] {
			in = append(in, w)
		}
		add(fmt.Sprintf("f%d", k), in...)
	}
	last := len(p.Values) - 1
	p.Gates = []int{len(p.Ops)}
	g := add("gate", last)
	for k := n; k > 0; k-- {
		g = add(fmt.Sprintf("b%d", k), g, p.Ops[k-1].Inputs[0], k)
	}
	p.Values[g].Output = true
	return p
}

// TestMustRecomputeThatCannotBe: where what must be recomputed rests on what can't be, and no order was found that obeys, that is an
// error about the value or the budget, not a plan that Check throws out.
func TestMustRecomputeThatCannotBe(t *testing.T) {
	failed := 0
	for seed := uint64(0); seed < 1200; seed++ {
		rng := randv2.New(randv2.NewPCG(seed, 92))
		p := randomProblem(rng, 3+rng.IntN(3))
		p.Gates = []int{rng.IntN(len(p.Ops))}
		p.Values[rng.IntN(len(p.Values))].Policy = MustRecompute
		if _, err := Solve(t.Context(), p, Options{Steps: 300}); err != nil {
			require.NotContains(t, err.Error(), "BUG", "seed %d", seed)
			failed++
		}
	}
	require.Greater(t, failed, 20)
}

// baselinesAreLegal holds the plan of every baseline that makes one against Check.
func baselinesAreLegal(t *testing.T, p *Problem, trial int) {
	t.Helper()
	for _, bl := range Baselines() {
		plan, err := PlanBaseline(context.Background(), p, bl.Name, 0, -1)
		if errors.Is(err, ErrOverBudget) || errors.Is(err, ErrNoChain) {
			continue
		}
		require.NoError(t, err, "trial %d: %s", trial, bl.Name)
		_, err = Check(p, plan, -1)
		require.NoError(t, err, "trial %d: %s", trial, bl.Name)
	}
}
