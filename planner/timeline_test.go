package planner

import (
	"math/rand/v2"
	"testing"
)

// TestTimeline changes sequences at random and compares with the simulator.
func TestTimeline(t *testing.T) {
	for seed := uint64(0); seed < 400; seed++ {
		rng := rand.New(rand.NewPCG(seed, 2))
		p := randomProblem(rng, 2+rng.IntN(30))
		m := newModel(p)
		sim := newSimulator(m)
		tl := newTimeline(m, m.order)
		for step := 0; step < 120; step++ {
			before := tl.sequence()
			mark := len(tl.log)
			for k := rng.IntN(3); k >= 0; k-- {
				var all []int32
				for i := tl.next[head]; i != tail; i = tl.next[i] {
					all = append(all, i)
				}
				i := all[rng.IntN(len(all))]
				switch rng.IntN(4) {
				case 0:
					if tl.canTake(i) {
						tl.take(i)
					}
				case 1:
					tl.move(i, all[rng.IntN(len(all))])
				default:
					x := int32(rng.IntN(m.n))
					if tl.count < 3*m.n && tl.canPut(x, i) {
						tl.put(x, i)
					}
				}
			}
			seq := tl.sequence()
			peak, cost, ok := sim.run(seq)
			if !ok {
				t.Fatalf("seed %d step %d: illegal sequence %v", seed, step, seq)
			}
			if peak != tl.peak() || cost != tl.cost {
				t.Fatalf("seed %d step %d: simulator %d, %d; timeline %d, %d; sequence %v", seed, step, peak, cost, tl.peak(), tl.cost, seq)
			}
			var excess int64
			for _, b := range sim.mem {
				excess += max(0, b-peak/2)
			}
			if got := tl.tree.excess(peak / 2); got < excess {
				t.Fatalf("seed %d step %d: excess %d, want at least %d", seed, step, got, excess)
			}
			if rng.IntN(2) == 0 {
				tl.undo(mark)
				if !sameSeq(before, tl.sequence()) {
					t.Fatalf("seed %d step %d: undo gives %v, want %v", seed, step, tl.sequence(), before)
				}
				peak, _, _ := sim.run(before)
				if peak != tl.peak() {
					t.Fatalf("seed %d step %d: after undo simulator %d, timeline %d", seed, step, peak, tl.peak())
				}
			}
		}
	}
}
