package planner

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// layered makes a model of like layers, forwards and backwards. A layer makes a
// (from what the layer before passes on), b and the next; its backward part
// reads all three and the gradient, and an optimizer's step reads that of the
// weights. Nothing says which ops are of one layer.
func layered(layers int) *Problem {
	p := &Problem{Name: "layered"}
	add := func(cost, bytes int64, in ...int) int {
		p.Values = append(p.Values, Value{Bytes: bytes})
		v := len(p.Values) - 1
		p.Ops = append(p.Ops, Op{Cost: cost, Det: DetExact, Inputs: append([]int(nil), in...), Outputs: []int{v}})
		return v
	}
	x := add(7, 16)
	var parts [][3]int
	for range layers {
		a := add(20, 16, x)
		b := add(3, 48, a)
		parts = append(parts, [3]int{x, a, b})
		x = add(40, 16, b, x)
	}
	g := add(5, 16, x)
	for k := layers - 1; k >= 0; k-- {
		q := parts[k]
		db := add(40, 48, g, q[2])
		da := add(6, 16, db, q[1])
		p.Values[add(20, 1, da, q[0])].Output = true
		g = add(20, 16, da, g)
	}
	p.Values[g].Output = true
	return p
}

// TestAlike finds the layers of a model and their parts.
func TestAlike(t *testing.T) {
	const layers = 24
	m := newModel(layered(layers))
	a := newAlike(m)
	require.NotNil(t, a)
	require.Len(t, a.anchors, 2, "one anchor forwards, one backwards")
	// Ops: 0, then three of each layer, the loss, then four of each layer.
	fwd := func(layer, part int32) int32 { return 1 + 3*layer + part }
	bwd := func(layer, part int32) int32 { return 2 + 3*layers + 4*(layers-1-layer) + part }
	for layer := int32(10); layer < 14; layer++ {
		for steps := int32(-3); steps <= 3; steps++ {
			for part := int32(0); part < 3; part++ {
				require.Equal(t, fwd(layer+steps, part), a.moved(fwd(layer, part), steps), "part %d of layer %d, %d on", part, layer, steps)
			}
			for part := int32(0); part < 4; part++ {
				require.Equal(t, bwd(layer+steps, part), a.moved(bwd(layer, part), steps), "backward part %d of layer %d, %d on", part, layer, steps)
			}
		}
	}
	require.Equal(t, int32(-1), a.moved(fwd(12, 1), layers), "beyond the end")

	p := layered(layers)
	for i := range p.Ops {
		p.Ops[i].Cost += int64(i)
	}
	require.Nil(t, newAlike(newModel(p)), "no two ops cost the same")
}

// TestLift does in every layer what was changed in one, as far as there is room.
func TestLift(t *testing.T) {
	const layers = 24
	p := layered(layers)
	m := newModel(p)
	a := newAlike(m)
	require.NotNil(t, a)
	// Compute b, which is large and cheap, again in every layer.
	var wasteful []int32
	for _, x := range m.order {
		if x > 3*layers+1 && (x-3*layers-2)%4 == 0 {
			layer := layers - 1 - (x-3*layers-2)/4
			wasteful = append(wasteful, 1+3*layer+1)
		}
		wasteful = append(wasteful, x)
	}
	for _, room := range []struct {
		bytes int64
		again int // copies that have to stay
	}{{1 << 40, 0}, {48 * 11, 6}} {
		s := newSearch(t.Context(), p, Options{})
		peak, cost, ok := s.sim.run(wasteful)
		require.True(t, ok)
		s.opt.Budget = peak + room.bytes
		require.True(t, s.offer(wasteful, "test"))
		// One layer in the middle keeps it.
		kept := make([]int32, 0, len(wasteful))
		first := true
		for _, x := range wasteful {
			if x == 1+3*12+1 {
				if !first {
					continue
				}
				first = false
			}
			kept = append(kept, x)
		}
		require.True(t, s.offer(kept, "test"))
		require.Equal(t, cost-3, s.cost)
		renewals := a.renewals(wasteful, s.best)
		require.Len(t, renewals, 1)
		places := a.places(s.best, renewals)
		s.lift(a, renewals, places)
		require.Equal(t, "alike", s.solver)
		if room.bytes > 1<<30 {
			require.Equal(t, cost-3*int64(1+len(places)), s.cost)
			require.GreaterOrEqual(t, len(places), layers-12)
			continue
		}
		// No layer more has room.
		saved := int((cost - s.cost) / 3)
		full, _, _ := s.sim.run(s.best)
		require.Greater(t, saved, 6)
		require.LessOrEqual(t, s.opt.Budget-full, int64(2*48), "%d layers keep it", saved)
	}
}

// TestWithout turns solvers off: what is off is not heard of, what is left still makes a plan, and a name that is none
// is an error.
func TestWithout(t *testing.T) {
	p := chainWithSkips(40, 3)
	low, err := MinBudget(t.Context(), p)
	require.NoError(t, err)
	budget := (SaveAll(p).PeakBytes + 3*low.PeakBytes) / 4
	heard := func(without ...string) map[string]bool {
		names := make(map[string]bool)
		plan, err := Solve(t.Context(), p, Options{Budget: budget, Without: without, Steps: 40_000, Progress: func(pr Progress) {
			names[pr.Solver] = true
		}})
		require.NoError(t, err)
		_, err = Check(p, plan, budget)
		require.NoError(t, err)
		return names
	}
	all := heard()
	for _, name := range Solvers() {
		for solver := range heard(name) {
			if name != solverGuided && name != solverInteger { // parts of names, as in guided-greedy
				require.NotEqual(t, name, solver)
			} else {
				require.False(t, strings.HasPrefix(solver, name+"-"), solver)
			}
		}
	}
	require.Greater(t, len(all), len(heard(Solvers()...)))
	_, err = Solve(t.Context(), p, Options{Without: []string{"magic"}})
	require.ErrorContains(t, err, fmt.Sprintf("there is no solver %q: there are exhaustive, chain", "magic"))
}
