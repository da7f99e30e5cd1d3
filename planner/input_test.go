package planner

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestBadGraphs wants each broken graph file refused with what is wrong and
// where.
func TestBadGraphs(t *testing.T) {
	const head = `{"format":"reprise.graph/1",`
	for _, c := range []struct{ name, text, want string }{
		{"not JSON", "{\n\n  \"ops\": [}", "line 3"},
		{"more after it", head + `"ops":[],"values":[]} {}`, "more after"},
		{"another format", `{"format":"reprise.graph/9"}`, "reprise.graph/1"},
		{"no format", `{"ops":[],"values":[]}`, "no \"format\""},
		{"no graph", `{"x":1}`, "no graph"},
		{"NaN", head + `"ops":[{"name":"f","cost":NaN}],"values":[]}`, "line 1"},
		{"infinite", head + `"ops":[{"name":"f","cost":1e999}],"values":[]}`, "not a number"},
		{"fraction", head + `"ops":[{"name":"f","cost":1.5}],"values":[]}`, "not a whole number"},
		{"2^63", head + `"ops":[],"values":[{"name":"x","bytes":9223372036854775808,"resident":true}]}`, "63 bits"},
		{"sums near 2^63", head + `"ops":[],"values":[{"name":"x","bytes":9223372036854775807,"resident":true}]}`, `value 0 "x" add up`},
		{"unknown det", head + `"ops":[{"name":"f","det":"maybe"}],"values":[]}`, `op 0 "f": unknown determinism "maybe"`},
		{"unknown effect", head + `"ops":[{"name":"f","effect":"some"}],"values":[]}`, `op 0 "f": unknown effect "some"`},
		{"unknown policy", head + `"ops":[],"values":[{"name":"x","policy":"keep","resident":true}]}`, `value 0 "x": unknown policy "keep"`},
		{"no such value", head + `"ops":[{"name":"f","inputs":["y"]}],"values":[]}`, `op 0 "f" names value "y", which does not exist`},
		{"ambiguous name", head + `"ops":[{"name":"f","inputs":["x"]}],"values":[{"name":"x","resident":true},{"name":"x","resident":true}]}`, "several of that name"},
		{"no producer", head + `"ops":[],"values":[{"name":"x"}]}`, `value 0 "x" has no producer`},
		{"two producers", head + `"ops":[{"name":"f","outputs":[0]},{"name":"g","outputs":[0]}],"values":[{"name":"x"}]}`, `produced by op 0 "f" and by op 1 "g"`},
		{"cycle", head + `"ops":[{"name":"f","inputs":[1],"outputs":[0]},{"name":"g","inputs":[0],"outputs":[1]}],"values":[{"name":"x"},{"name":"y"}]}`, "cycle"},
		{"order", head + `"ops":[{"name":"f","outputs":[0]},{"name":"g","inputs":[0]}],"values":[{"name":"x"}],"order":[1,0]}`, `runs op 1 "g" at 0 before op 0 "f"`},
		{"a number for a list", `{"cost":3}`, `line 1: "cost" has a value of kind number`},
		{"a list", `[1]`, "line 1: the document has a value of kind array"},
		{"misspelt field", head + `"ops":[{"name":"f","input":["x"]}],"values":[{"name":"x","resident":true}]}`, `op 0 "f": unknown field "input"`},
		{"misspelt field of a value", head + `"ops":[],"values":[{"name":"x","resident":true,"size":1}]}`, `value 0 "x": unknown field "size"`},
		{"misspelt field of the file", head + `"ops":[],"values":[],"gate":[1]}`, `unknown field "gate"`},
		{"index", head + `"ops":[{"name":"f","inputs":[-1]}],"values":[]}`, "not an index"},
		{"pair", head + `"ops":[{"name":"f","inplace":[[0]]}],"values":[{"name":"x","resident":true}]}`, "in-place pair of 1"},
		{"lengths", `{"ram":[1],"cost":[1,2],"pred":[[]]}`, "1, 2 and 1 entries"},
		{"pinned", `{"ram":[1],"cost":[1],"pred":[[]],"pinned":[4]}`, "nodes 0 to 0"},
		{"empty file", " \n", "the file is empty"},
		{"backward part", head + `"ops":[],"values":[],"first_backward_or_loss":9}`, "first_backward_or_loss\" is op 9"},
	} {
		_, err := ReadGraph(strings.NewReader(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: want an error with %q, got %v", c.name, c.want, err)
		}
	}
	for _, text := range []string{head + `"ops":[],"values":[]}`, `{"ram":[],"cost":[],"pred":[]}`,
		head + `"ops":[{"name":"f","cost":0,"det":"exact","outputs":[0]}],"values":[{"name":"x","bytes":0}]}`} {
		g, err := ReadGraph(strings.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if plan, err := Solve(t.Context(), g.Problem, Options{Budget: 1}); err != nil || plan.Cost != 0 {
			t.Errorf("%s: %v, %v", text, plan, err)
		}
	}
}

// TestTooSmall asks for less than the largest working set.
func TestTooSmall(t *testing.T) {
	p := simpleProblem(rand.New(rand.NewPCG(2, 17)), 30)
	floor := newModel(p).footprint()
	_, err := Solve(t.Context(), p, Options{Budget: floor - 1})
	var inf *InfeasibleError
	if !errors.As(err, &inf) || !inf.Proven() || inf.LowerBoundBytes < floor || inf.MinBudget < inf.LowerBoundBytes || len(inf.Binding) == 0 {
		t.Errorf("budget %d below a working set of %d: %v", floor-1, floor, err)
	}
	if _, err := Solve(t.Context(), p, Options{Budget: inf.MinBudget, Steps: 1000}); err != nil {
		t.Errorf("the smallest budget found does not work: %v", err)
	}
}

// TestCancel stops a search once it has a plan: the plan comes back. Progress
// must never get worse.
func TestCancel(t *testing.T) {
	p := simpleProblem(rand.New(rand.NewPCG(5, 9)), 40)
	least, err := MinBudget(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	budget := (least.BudgetBytes + SaveAll(p).PeakBytes) / 2
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := 0
	last := Progress{Best: -1}
	plan, err := Solve(ctx, p, Options{Budget: budget, Steps: 1 << 40, Progress: func(pr Progress) {
		if calls++; calls > 1 && (pr.Best < 0 || pr.Best > last.Best || pr.LowerBound < last.LowerBound || pr.Steps < last.Steps) {
			t.Errorf("progress got worse: %+v after %+v", pr, last)
		}
		last = pr
		cancel()
	}})
	if err != nil || plan.Cost > last.Best {
		t.Errorf("cancelled with a plan of cost %d at hand: %v, %v", last.Best, plan, err)
	}
	if _, err := Check(p, plan, budget); err != nil {
		t.Error(err)
	}
	gone, stop := context.WithCancel(t.Context())
	stop()
	if plan, err := Solve(gone, p, Options{Budget: least.BudgetBytes}); err == nil {
		if _, err := Check(p, plan, least.BudgetBytes); err != nil {
			t.Error(err)
		}
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before it began: %v", err)
	}
}
