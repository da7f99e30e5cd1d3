package planner

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"
)

// chainProblem makes a chain of n layers, a loss and n gradients. A gradient
// reads the input of its layer, its output, or both.
func chainProblem(rng *rand.Rand, n, reads int) *Problem {
	p := &Problem{Name: "chain"}
	add := func(cost, bytes, work int64, in ...int) int {
		p.Values = append(p.Values, Value{Bytes: bytes})
		v := len(p.Values) - 1
		p.Ops = append(p.Ops, Op{Cost: cost, Workspace: work, Det: DetExact, Inputs: append([]int(nil), in...), Outputs: []int{v}})
		return v
	}
	acts := []int{add(1+rng.Int64N(9), 1+rng.Int64N(6), 0)}
	for i := 1; i < n; i++ {
		acts = append(acts, add(1+rng.Int64N(9), 1+rng.Int64N(6), rng.Int64N(3), acts[i-1]))
	}
	g := add(1, 1+rng.Int64N(4), 0, acts[n-1])
	for i := n - 1; i >= 1; i-- {
		in := []int{g}
		k := reads
		if k == 3 {
			k = rng.IntN(3)
		}
		switch k {
		case 0:
			in = append(in, acts[i-1])
		case 1:
			in = append(in, acts[i])
		default:
			in = append(in, acts[i], acts[i-1])
		}
		g = add(1+rng.Int64N(9), 1+rng.Int64N(4), rng.Int64N(3), in...)
	}
	p.Values[g].Output = true
	return p
}

// TestRotor holds the dynamic programme against the optimum over all plans on
// short chains: its plans are legal, within the budget, and never cheaper; they
// are dearer only where the optimum is not made of stages.
func TestRotor(t *testing.T) {
	var same, dearer, none [4]int
	for seed := uint64(0); seed < 240; seed++ {
		rng := rand.New(rand.NewPCG(seed, 15))
		n := 3 + rng.IntN(3)
		p := chainProblem(rng, n, int(seed%4))
		low, high := newModel(p).footprint(), SaveAll(p).PeakBytes
		for budget := low; budget <= high; budget += max(1, (high-low)/4) {
			seq, opt, known := exact(newModel(p), budget, 1<<20, never0)
			if !known {
				t.Fatal("the exhaustive search gave up")
			}
			plan, err := PlanBaseline(t.Context(), p, "rotor", budget, n)
			switch {
			case errors.Is(err, ErrOverBudget):
				if seq != nil {
					none[seed%4]++
				}
			case err != nil:
				t.Fatalf("seed %d: %v", seed, err)
			case seq == nil || plan.Cost < opt:
				t.Fatalf("seed %d budget %d: the optimum is %d, rotor costs %d", seed, budget, opt, plan.Cost)
			case plan.Cost == opt:
				same[seed%4]++
			default:
				dearer[seed%4]++
			}
		}
	}
	t.Logf("%d optimal, %d dearer, %d without a plan", same, dearer, none)
	if _, err := PlanBaseline(t.Context(), simpleProblem(rand.New(rand.NewPCG(1, 1)), 30), "rotor", 100, -1); !errors.Is(err, ErrNoChain) {
		t.Errorf("a graph that is no chain: %v", err)
	}
}

// TestChains holds the portfolio without its exhaustive search against that on short chains: the programme, and the
// proof by search over states, find and prove every optimum, also where no plan is made of stages, and no plan where
// there is none.
func TestChains(t *testing.T) {
	seeds := uint64(80)
	if os.Getenv("REPRISE_LONG") != "" {
		seeds = 240
	}
	optima := 0
	for seed := uint64(0); seed < seeds; seed++ {
		rng := rand.New(rand.NewPCG(seed, 15))
		p := chainProblem(rng, 3+rng.IntN(3), int(seed%4))
		low, high := newModel(p).footprint(), SaveAll(p).PeakBytes
		for budget := low; budget <= high; budget += max(1, (high-low)/4) {
			seq, opt, known := exact(newModel(p), budget, 1<<20, never0)
			if !known {
				t.Fatal("the exhaustive search gave up")
			}
			plan, err := Solve(t.Context(), p, Options{Budget: budget, Steps: 500, Without: []string{"exhaustive"}})
			var inf *InfeasibleError
			switch {
			case errors.As(err, &inf) && seq == nil:
			case err != nil:
				t.Errorf("seed %d budget %d: the optimum is %d: %v", seed, budget, opt, err)
			case seq == nil || plan.Cost != opt || plan.LowerBound != opt:
				t.Errorf("seed %d budget %d: the optimum is %d, the plan costs %d, with a bound of %d (%s)", seed, budget, opt, plan.Cost, plan.LowerBound, plan.Proof)
			default:
				optima++
			}
		}
	}
	t.Logf("%d optima", optima)
}
