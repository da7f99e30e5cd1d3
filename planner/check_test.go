package planner

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// mutation breaks a plan in one way. It returns the broken problem and plan
// (copies), the budget, and the rule that must be named; or ok = false if the
// plan has nothing to break in this way.
type mutation func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool)

func mutations() map[string]mutation {
	copyOf := func(o []int) []int { return append([]int(nil), o...) }
	return map[string]mutation{
		"index": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			if len(order) == 0 {
				return nil, nil, 0, "", false
			}
			o := copyOf(order)
			o[rng.IntN(len(o))] = len(p.Ops) + rng.IntN(3)
			return p, &Plan{Order: o}, -1, RuleIndex, true
		},
		"once": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			var pinned []int
			for k, i := range order {
				if p.Ops[i].RunsOnce() {
					pinned = append(pinned, k)
				}
			}
			if len(pinned) == 0 {
				return nil, nil, 0, "", false
			}
			k := pinned[rng.IntN(len(pinned))]
			o := append(copyOf(order[:k+1]), order[k:]...)
			return p, &Plan{Order: o}, -1, RuleOnce, true
		},
		"input": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			prod := p.producers()
			var readers []int
			for k, i := range order {
				for _, v := range p.Ops[i].Inputs {
					if prod[v] >= 0 {
						readers = append(readers, k)
						break
					}
				}
			}
			if len(readers) == 0 {
				return nil, nil, 0, "", false
			}
			k := readers[rng.IntN(len(readers))]
			o := append([]int{order[k]}, order[:k]...)
			o = append(o, order[k+1:]...)
			return p, &Plan{Order: o}, -1, RuleInput, true
		},
		"missing": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			// The last op of the order has no readers after it.
			if len(order) == 0 {
				return nil, nil, 0, "", false
			}
			last := order[len(order)-1]
			for _, i := range order[:len(order)-1] {
				if i == last {
					return nil, nil, 0, "", false
				}
			}
			return p, &Plan{Order: copyOf(order[:len(order)-1])}, -1, RuleMissing, true
		},
		"budget": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			return p, &Plan{Order: order}, rep.PeakBytes - 1, RuleBudget, rep.PeakBytes > 0
		},
		"cost": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			return p, &Plan{Order: order, Cost: rep.Cost + 1}, -1, RuleClaim, true
		},
		"peak": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			return p, &Plan{Order: order, PeakBytes: rep.PeakBytes + 1}, -1, RuleClaim, true
		},
		"overwrite": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			// A new op that reads what some op overwrites, after it.
			q := *p
			for k, i := range order {
				for _, pr := range p.Ops[i].InPlace {
					if aliasing(p).overwrites(pr) {
						q.Ops = append(append([]Op(nil), p.Ops...), Op{Name: "late", Det: DetExact, Inputs: []int{pr[0]}, Outputs: []int{len(p.Values)}})
						q.Values = append(append([]Value(nil), p.Values...), Value{Name: "late"})
						// In the default order it comes right before the overwriter.
						var def []int
						for _, j := range p.order() {
							if j == i {
								def = append(def, len(p.Ops))
							}
							def = append(def, j)
						}
						q.Order = def
						o := append(copyOf(order[:k+1]), len(p.Ops))
						o = append(o, order[k+1:]...)
						return &q, &Plan{Order: o}, -1, RuleOverwrite, true
					}
				}
			}
			return nil, nil, 0, "", false
		},
		"effect": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			// Two host callbacks without operands, the wrong way round.
			q := *p
			n := len(p.Ops)
			q.Ops = append(append([]Op(nil), p.Ops...), Op{Name: "a", Effect: EffectHost}, Op{Name: "b", Effect: EffectHost})
			q.Order = append(copyOf(p.order()), n, n+1)
			return &q, &Plan{Order: append(copyOf(order), n+1, n)}, -1, RuleEffect, true
		},
		"output": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			// In the default order v takes the place of y; the plan makes v first.
			q := &Problem{
				Ops: []Op{
					{Name: "make", Det: DetExact, Outputs: []int{0, 1}},
					{Name: "over", Det: DetExact, Inputs: []int{0}, Outputs: []int{2}, InPlace: [][2]int{{0, 2}}},
					{Name: "view", Det: DetExact, Inputs: []int{1}, Outputs: []int{3}},
				},
				Values: []Value{
					{Name: "x", Bytes: 4, Storage: 1}, {Name: "q", Bytes: 4, Offset: 4, Storage: 1},
					{Name: "y", Bytes: 4, Storage: 1}, {Name: "v", Bytes: 4, Storage: 1, Output: true},
				},
			}
			return q, &Plan{Order: []int{0, 2, 1}}, -1, RuleOutput, true
		},
		"overflow": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			// As dear as an op may be, and run again until the sum is too large.
			q := &Problem{Ops: []Op{{Name: "dear", Cost: maxTotal, Det: DetExact, Outputs: []int{0}}}, Values: []Value{{Name: "x", Bytes: 1}}}
			return q, &Plan{Order: make([]int, 65+rng.IntN(9))}, -1, RuleOverflow, true
		},
		"arena": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			plan := &Plan{Order: order}
			if layout(p, plan, 0) != nil || plan.ArenaBytes == 0 || len(plan.Offsets) == 0 {
				return nil, nil, 0, "", false
			}
			plan.ArenaBytes--
			return p, plan, -1, RuleClaim, true
		},
		"policy": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			q := *p
			q.Values = append([]Value(nil), p.Values...)
			uses := make([]int, len(p.Values))
			for i := range p.Ops {
				for _, v := range p.Ops[i].Inputs {
					uses[v]++
				}
			}
			count := make([]int, len(p.Ops))
			for _, i := range order {
				count[i]++
			}
			for i := range p.Ops {
				for _, v := range p.Ops[i].Outputs {
					if count[i] == 1 && uses[v] > 1 && !p.Ops[i].RunsOnce() {
						q.Values[v].Policy = MustRecompute
						return &q, &Plan{Order: order}, -1, RulePolicy, true
					}
				}
			}
			return nil, nil, 0, "", false
		},
		"layout": func(rng *rand.Rand, p *Problem, order []int, rep Report) (*Problem, *Plan, int64, Rule, bool) {
			plan := &Plan{Order: order}
			if layout(p, plan, 0) != nil || len(plan.Offsets) == 0 {
				return nil, nil, 0, "", false
			}
			k := rng.IntN(len(plan.Offsets))
			switch rng.IntN(4) {
			case 0:
				plan.Offsets[k].Offset = -1
			case 1:
				plan.Offsets[k].Bytes++
			case 2:
				plan.Offsets = append(plan.Offsets[:k:k], plan.Offsets[k+1:]...)
			default:
				for j := range plan.Offsets {
					a, b := plan.Offsets[k], plan.Offsets[j]
					if j != k && a.Bytes > 0 && b.Bytes > 0 && a.Start <= b.End && b.Start <= a.End {
						plan.Offsets[k].Offset = b.Offset
						return p, plan, -1, RuleLayout, true
					}
				}
				return nil, nil, 0, "", false
			}
			return p, plan, -1, RuleLayout, true
		},
	}
}

// TestCheckRejects breaks plans in every way there is and wants each rejected
// for the right reason.
func TestCheckRejects(t *testing.T) {
	broken := 0
	count := map[string]int{}
	all := mutations()
	names := slices.Sorted(maps.Keys(all))
	for seed := uint64(0); broken < 1500 && seed < 2000; seed++ {
		rng := rand.New(rand.NewPCG(seed, 5))
		p := randomProblem(rng, 2+rng.IntN(15))
		order := append([]int(nil), p.order()...)
		for k := 0; k < 6; k++ { // some recomputation
			at := rng.IntN(len(order) + 1)
			with := append(append(append([]int(nil), order[:at]...), rng.IntN(len(p.Ops))), order[at:]...)
			if _, err := Check(p, &Plan{Order: with}, -1); err == nil {
				order = with
			}
		}
		rep, err := Check(p, &Plan{Order: order}, -1)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			q, plan, budget, rule, ok := all[name](rng, p, order, rep)
			if !ok {
				continue
			}
			_, err := Check(q, plan, budget)
			var v *Violation
			if !errors.As(err, &v) {
				t.Fatalf("seed %d, %s: want rule %s, got %v", seed, name, rule, err)
			}
			if v.Rule != rule {
				t.Fatalf("seed %d, %s: want rule %s, got %s: %v", seed, name, rule, v.Rule, err)
			}
			broken++
			count[name]++
		}
	}
	for name := range mutations() {
		if count[name] == 0 {
			t.Errorf("nothing was broken by %s", name)
		}
	}
	if broken < 1000 {
		t.Errorf("only %d broken plans", broken)
	}
}

// TestCheckmateSolutions replays Checkmate's own schedules: legal, within the
// budget, and at the logged cost.
func TestCheckmateSolutions(t *testing.T) {
	for _, c := range []struct {
		graph, file string
		gb          float64
	}{
		{"monet_vgg16_176", "vgg16_176_normal_8.00", 8},
		{"monet_unet_11", "un_11_normal_6.00", 6},
		{"monet_mobilenetv2_272", "mobilenet_v2_272_normal_7.00", 7},
		{"monet_resnet50_184", "resnet50_184_normal_7.00", 7},
	} {
		g := loadGraph(t, c.graph)
		data, err := os.ReadFile(dataPath(t, "solutions/"+c.file+".solution.json"))
		if err != nil {
			t.Fatal(err)
		}
		var sol struct {
			R        [][]int `json:"R"`
			Expected float64 `json:"runtime_expected"`
		}
		if err := json.Unmarshal(data, &sol); err != nil {
			t.Fatal(err)
		}
		var order []int
		for _, row := range sol.R {
			order = append(order, row...)
		}
		rep, err := Check(g.Problem, &Plan{Order: order}, int64(c.gb*1048576))
		if err != nil {
			t.Errorf("%s: %v", c.graph, err)
			continue
		}
		if math.Abs(float64(rep.Cost)-sol.Expected) > 1 {
			t.Errorf("%s: cost %d, logged %v", c.graph, rep.Cost, sol.Expected)
		}
	}
}

func TestValidate(t *testing.T) {
	good := func() *Problem {
		return &Problem{
			Ops:    []Op{{Name: "f", Cost: 1, Det: DetExact, Outputs: []int{0}}, {Name: "g", Cost: 1, Det: DetExact, Inputs: []int{0}, Outputs: []int{1}}},
			Values: []Value{{Name: "x", Bytes: 1}, {Name: "y", Bytes: 1}},
		}
	}
	for _, c := range []struct {
		want   string
		damage func(p *Problem)
	}{
		{"cycle", func(p *Problem) { p.Ops[0].Inputs = []int{1} }},
		{"no producer", func(p *Problem) { p.Values = append(p.Values, Value{Name: "z"}) }},
		{"produced by", func(p *Problem) { p.Ops[1].Outputs = []int{1, 0} }},
		{"negative size", func(p *Problem) { p.Values[0].Bytes = -1 }},
		{"negative cost", func(p *Problem) { p.Ops[0].Cost = -1 }},
		{"negative workspace", func(p *Problem) { p.Ops[0].Workspace = -1 }},
		{"add up to more", func(p *Problem) { p.Values[0].Bytes = math.MaxInt64 }},
		{"add up to more", func(p *Problem) { p.Ops[0].Cost = math.MaxInt64/64 - 1; p.Ops[1].Cost = 2 }},
		{"unknown determinism", func(p *Problem) { p.Ops[0].Det = 99 }},
		{"unknown effect", func(p *Problem) { p.Ops[0].Effect = 99 }},
		{"unknown policy", func(p *Problem) { p.Values[0].Policy = 99 }},
		{"before", func(p *Problem) { p.Order = []int{1, 0} }},
		{"twice", func(p *Problem) { p.Order = []int{0, 0} }},
		{"entries", func(p *Problem) { p.Order = []int{0} }},
		{"there are ops", func(p *Problem) { p.Order = []int{0, 7} }},
		{"there are values", func(p *Problem) { p.Ops[1].Inputs = []int{5} }},
		{"not an input", func(p *Problem) { p.Ops[0].InPlace = [][2]int{{1, 0}} }},
		{"not a positive number", func(p *Problem) { p.Offload = &Offload{BytesPerNsOut: math.NaN(), BytesPerNsIn: 1} }},
		{"resident", func(p *Problem) { p.Values[0].Resident = true }},
	} {
		p := good()
		c.damage(p)
		err := p.Validate()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error with %q, got %v", c.want, err)
		}
		if _, err := Solve(t.Context(), p, Options{Budget: 1}); err == nil {
			t.Errorf("%s: Solve accepts it", c.want)
		}
	}
	if err := good().Validate(); err != nil {
		t.Error(err)
	}
	if _, err := Solve(t.Context(), &Problem{}, Options{Budget: 1}); err != nil {
		t.Errorf("empty problem: %v", err)
	}
}

func TestGraphRoundTrip(t *testing.T) {
	for seed := uint64(0); seed < 200; seed++ {
		rng := rand.New(rand.NewPCG(seed, 6))
		p := randomProblem(rng, 1+rng.IntN(20))
		var a, b bytes.Buffer
		if err := WriteGraph(&a, p); err != nil {
			t.Fatal(err)
		}
		g, err := ReadGraph(bytes.NewReader(a.Bytes()))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		all := SaveAll(p)
		if got := SaveAll(g.Problem); got.PeakBytes != all.PeakBytes || got.Cost != all.Cost {
			t.Fatalf("seed %d: peak %d cost %d, after a round trip %d, %d", seed, all.PeakBytes, all.Cost, got.PeakBytes, got.Cost)
		}
		if err := WritePlan(&b, all); err != nil {
			t.Fatal(err)
		}
		plan, err := ReadPlan(&b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Check(p, plan, all.PeakBytes); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzReadGraph(f *testing.F) {
	f.Add([]byte(`{"format":"reprise.graph/1","ops":[{"name":"f","cost":1,"inputs":["x"],"outputs":[1],"inplace":[],"det":"exact","effect":"none","group":0}],"values":[{"name":"x","bytes":1,"resident":true},{"name":"y","bytes":1e3,"storage":4,"output":true,"policy":"none"}],"order":[0]}`))
	f.Add([]byte(`{"ram":[1,2],"cost":[3,4],"pred":[[],[0]],"fixed_ram":5,"pinned":[1]}`))
	f.Add([]byte(`{"ram":[1],"cost":[1.5],"pred":[[0]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := ReadGraph(bytes.NewReader(data))
		if err != nil {
			return
		}
		if err := g.Problem.Validate(); err != nil {
			t.Fatalf("a graph that was read is not valid: %v", err)
		}
		SaveAll(g.Problem)
	})
}

func FuzzReadPlan(f *testing.F) {
	f.Add([]byte(`{"format":"reprise.plan/1","order":[0,1,0],"cost":3}`))
	p := &Problem{
		Ops:    []Op{{Det: DetExact, Outputs: []int{0}}, {Det: DetExact, Inputs: []int{0}, Outputs: []int{1}}},
		Values: []Value{{Bytes: 1}, {Bytes: 2}},
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		plan, err := ReadPlan(bytes.NewReader(data))
		if err != nil {
			return
		}
		if _, err := Check(p, plan, 10); err != nil && err.Error() == "" {
			t.Fatal("an error without a message")
		}
	})
}

func TestPolicies(t *testing.T) {
	// A chain with a far reader: x is cheap to make again, y is not.
	p := &Problem{
		Ops: []Op{
			{Name: "x", Cost: 5, Det: DetExact, Outputs: []int{0}},
			{Name: "y", Cost: 6, Det: DetExact, Outputs: []int{1}},
			{Name: "mid", Cost: 1, Det: DetExact, Inputs: []int{0, 1}, Outputs: []int{2}},
			{Name: "big", Cost: 1, Det: DetExact, Inputs: []int{2}, Outputs: []int{3}},
			{Name: "end", Cost: 1, Det: DetExact, Inputs: []int{3, 0, 1}, Outputs: []int{4}},
		},
		Values: []Value{{Name: "x", Bytes: 10}, {Name: "y", Bytes: 10}, {Name: "m", Bytes: 1}, {Name: "b", Bytes: 10}, {Name: "e", Bytes: 1, Output: true}},
	}
	count := func(plan *Plan, op int) (n int) {
		for _, i := range plan.Order {
			if i == op {
				n++
			}
		}
		return n
	}
	p.Values[0].Policy = MustRecompute
	plan, err := Solve(t.Context(), p, Options{})
	if err != nil || count(plan, 0) < 2 {
		t.Errorf("must-recompute: %v, %v", plan, err)
	}
	if low, err := MinBudget(t.Context(), p); err != nil || count(low, 0) < 2 {
		t.Errorf("must-recompute: %v, %v", low, err)
	}
	SaveAll(p)
	p.Values[0].Policy = MustSave
	low, err := MinBudget(t.Context(), p)
	if err != nil || count(low, 0) != 1 {
		t.Errorf("must-save: %v, %v", low, err)
	}
	p.Values[0].Policy = MustOffload
	if _, err := Solve(t.Context(), p, Options{}); err == nil || !strings.Contains(err.Error(), "offloaded") {
		t.Errorf("must-offload: %v", err)
	}
}
