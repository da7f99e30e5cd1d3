package planner

import (
	"math/rand/v2"
	"testing"
)

// TestProver compares the prover with the exhaustive search: with every node
// allowed to run again it must find the optimum, whatever limit on cost it is
// given, and with the nodes that the cuts leave, whatever is cheaper than a
// given plan.
func TestProver(t *testing.T) {
	proven, found := 0, 0
	for seed := uint64(0); seed < 600; seed++ {
		rng := rand.New(rand.NewPCG(seed, 14))
		p := simpleProblem(rng, 3+rng.IntN(7))
		for i := range p.Ops {
			p.Ops[i].InPlace = nil
			if rng.IntN(4) == 0 {
				p.Ops[i].Cost = 0
			}
			if rng.IntN(5) == 0 {
				p.Values = append(p.Values, Value{Bytes: rng.Int64N(4)})
				p.Ops[i].Outputs = append(p.Ops[i].Outputs, len(p.Values)-1)
			}
		}
		m := newModel(p)
		if !provable(m) {
			t.Fatalf("seed %d: not provable", seed)
		}
		var every set
		for x := range m.once {
			if !m.once[x] {
				every.add(int32(x))
			}
		}
		low, high := m.footprint(), SaveAll(p).PeakBytes
		for budget := low; budget <= high; budget += max(1, (high-low)/3) {
			seq, opt, known := exact(m, budget, 1<<20, never0)
			if !known {
				t.Fatalf("seed %d: the exhaustive search gave up", seed)
			}
			got, known := newProver(m, budget, 1<<40, every).run(1<<40, never0)
			if !known || (got == nil) != (seq == nil) {
				t.Fatalf("seed %d budget %d: the optimum is %v, the prover says %v (%v)", seed, budget, seq, got, known)
			}
			if seq == nil {
				continue
			}
			sim := newSimulator(m)
			if peak, cost, ok := sim.run(got); !ok || peak > budget || cost != opt {
				t.Fatalf("seed %d budget %d: the prover's plan %v costs %d, the optimum is %d", seed, budget, got, cost, opt)
			}
			s := newSearch(t.Context(), p, Options{Budget: budget})
			s.bound()
			for _, below := range []int64{opt, opt + 1, opt + 3} {
				var cuts []*cut
				var prices []int64
				for b := int32(0); b < int32(m.n); b += 2 {
					cuts, prices = append(cuts, newCut(m, s.kin, b, budget)), append(prices, 1)
				}
				got, known := newProver(m, budget, below, s.mayRunAgain(below, cuts, prices)).run(1<<40, never0)
				if !known || (got == nil) != (below == opt) {
					t.Fatalf("seed %d budget %d: the optimum is %d, below %d the prover says %v", seed, budget, opt, below, got)
				}
				if got == nil {
					proven++
				} else {
					found++
				}
			}
		}
	}
	if proven < 1000 || found < 1000 {
		t.Errorf("%d proven, %d found", proven, found)
	}
}
