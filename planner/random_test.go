package planner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// dataPath finds a file of the shared planner data, or skips the test.
func dataPath(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		path := filepath.Join(dir, "..", "shared", "planner-data", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Skipf("no shared/planner-data/%s next to the repository", name)
		}
		dir = up
	}
}

func loadGraph(t testing.TB, name string) *Graph {
	t.Helper()
	f, err := os.Open(dataPath(t, "graphs/"+name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g, err := ReadGraph(f)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// randomProblem makes a valid problem with everything in it that a problem can
// have: several outputs, workspaces, views, optional reuse, overwrites of
// residents, effects, pinned ops, outputs.
func randomProblem(rng *rand.Rand, n int) *Problem {
	p := &Problem{Name: "random"}
	var gone []bool
	addValue := func(v Value) int {
		v.Name = fmt.Sprintf("v%d", len(p.Values))
		p.Values = append(p.Values, v)
		gone = append(gone, false)
		return len(p.Values) - 1
	}
	for k := rng.IntN(4); k > 0; k-- {
		addValue(Value{Bytes: rng.Int64N(5), Resident: true})
	}
	storage := 1
	kill := func(v int) {
		gone[v] = true
		for w := range p.Values {
			if p.Values[v].Storage != 0 && p.Values[w].Storage == p.Values[v].Storage {
				gone[w] = true
			}
		}
	}
	pick := func() int {
		for try := 0; try < 20; try++ {
			if len(p.Values) == 0 {
				return -1
			}
			// Recent values are likelier, so that graphs have some depth.
			v := len(p.Values) - 1 - min(rng.IntN(len(p.Values)), rng.IntN(len(p.Values)))
			if !gone[v] {
				return v
			}
		}
		return -1
	}
	for i := 0; i < n; i++ {
		o := Op{Name: fmt.Sprintf("op%d", i), Cost: rng.Int64N(6), Det: DetExact}
		for k := rng.IntN(3); k >= 0; k-- {
			if v := pick(); v >= 0 {
				dup := false
				for _, w := range o.Inputs {
					dup = dup || v == w
				}
				if !dup {
					o.Inputs = append(o.Inputs, v)
				}
			}
		}
		switch rng.IntN(12) {
		case 0:
			o.Det = DetDecides
		case 1:
			o.Effect = Effect(1 + rng.IntN(4))
		case 2:
			o.Workspace = rng.Int64N(4)
		}
		kind := rng.IntN(10)
		switch {
		case kind == 0 && len(o.Inputs) > 0: // view
			in := o.Inputs[0]
			if p.Values[in].Storage == 0 {
				p.Values[in].Storage = storage
				storage++
			}
			o.Inputs = o.Inputs[:1]
			if rng.IntN(3) > 0 {
				o.Cost, o.Workspace, o.Det, o.Effect = 0, 0, DetExact, EffectNone
			}
			o.Outputs = []int{addValue(Value{Bytes: p.Values[in].Bytes, Storage: p.Values[in].Storage, Offset: p.Values[in].Offset})}
		case kind == 1 && len(o.Inputs) > 0: // overwrite
			in := o.Inputs[0]
			if p.Values[in].Storage == 0 {
				p.Values[in].Storage = storage
				storage++
			}
			st, bytes, off := p.Values[in].Storage, p.Values[in].Bytes, p.Values[in].Offset
			for w := range p.Values {
				if p.Values[w].Storage == st && p.Values[w].Output {
					p.Values[w].Output = false
				}
			}
			kill(in)
			out := addValue(Value{Bytes: bytes, Storage: st, Offset: off})
			o.Outputs = []int{out}
			o.InPlace = [][2]int{{in, out}}
		default:
			for k := rng.IntN(3) / 2; k >= 0; k-- {
				o.Outputs = append(o.Outputs, addValue(Value{Bytes: rng.Int64N(6)}))
			}
			for _, in := range o.Inputs {
				if !onResident(p, in) && rng.IntN(2) == 0 {
					o.InPlace = append(o.InPlace, [2]int{in, o.Outputs[rng.IntN(len(o.Outputs))]})
				}
			}
		}
		if rng.IntN(6) == 0 {
			p.Values[o.Outputs[0]].Output = true
		}
		p.Ops = append(p.Ops, o)
	}
	return p
}

// onResident reports whether v lives in resident memory, so that writing over
// it destroys it.
func onResident(p *Problem, v int) bool {
	for w := range p.Values {
		if p.Values[w].Resident && (w == v || (p.Values[w].Storage != 0 && p.Values[w].Storage == p.Values[v].Storage)) {
			return true
		}
	}
	return false
}

func TestRandomProblemsSolve(t *testing.T) {
	equal := 0
	for seed := uint64(0); seed < 400; seed++ {
		rng := rand.New(rand.NewPCG(seed, 1))
		p := randomProblem(rng, 1+rng.IntN(25))
		if err := p.Validate(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		all := SaveAll(p)
		m := newModel(p)
		peak, _, ok := newSimulator(m).run(m.order)
		if !ok {
			t.Fatalf("seed %d: the simulator rejects the given order", seed)
		}
		rep, err := Check(p, &Plan{Order: m.emit(m.order)}, -1)
		if err != nil {
			t.Fatalf("seed %d: emitted order: %v", seed, err)
		}
		// Views that cost something keep the simulator from seeing some reuse;
		// it must never be the other way round.
		if peak < rep.PeakBytes {
			t.Fatalf("seed %d: simulator says peak %d, Check says %d", seed, peak, rep.PeakBytes)
		}
		if peak == rep.PeakBytes {
			equal++
		}
		low, err := MinBudget(context.Background(), p)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, b := range []int64{all.PeakBytes, low.PeakBytes, (all.PeakBytes + low.PeakBytes) / 2, low.PeakBytes - 1} {
			plan, err := Solve(context.Background(), p, Options{Budget: b, Steps: 2000, Layout: seed%2 == 0})
			var inf *InfeasibleError
			if errors.As(err, &inf) {
				if b >= low.PeakBytes && seed%2 == 1 && b > 0 {
					t.Fatalf("seed %d: budget %d, min budget %d: %v", seed, b, low.PeakBytes, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("seed %d: budget %d: %v", seed, b, err)
			}
			if _, err := Check(p, plan, max(b, 0)); err != nil && b > 0 {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
	if equal < 370 {
		t.Errorf("simulator and Check agree on %d of 400 peaks only", equal)
	}
}
