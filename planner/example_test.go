package planner_test

import (
	"context"
	"fmt"
	"os"
	"strings"

	"gonum.org/v1/gonum/graph/simple"

	"reprise/planner"
)

// A chain of four layers and their gradients. Keeping every layer needs 60
// bytes; in 50 one of them is computed again.
func Example() {
	p := &planner.Problem{Name: "chain"}
	value := func(bytes int64) int {
		p.Values = append(p.Values, planner.Value{Bytes: bytes})
		return len(p.Values) - 1
	}
	op := func(name string, cost int64, out int, in ...int) {
		p.Ops = append(p.Ops, planner.Op{Name: name, Cost: cost, Det: planner.DetExact, Inputs: in, Outputs: []int{out}})
	}
	var acts []int
	for i := range 4 {
		a := value(10)
		if i == 0 {
			op("layer0", 10, a)
		} else {
			op(fmt.Sprint("layer", i), 10, a, acts[i-1])
		}
		acts = append(acts, a)
	}
	grad := value(10)
	op("loss", 1, grad, acts[3])
	for i := 3; i >= 1; i-- {
		g := value(10)
		op(fmt.Sprint("grad", i), 20, g, grad, acts[i], acts[i-1])
		grad = g
	}
	all := planner.SaveAll(p)
	fmt.Println("keeping everything:", all.PeakBytes, "bytes, cost", all.Cost)

	plan, err := planner.Solve(context.Background(), p, planner.Options{Budget: 50})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("planned:", plan.PeakBytes, "bytes, cost", plan.Cost, "- no plan costs less than", plan.LowerBound, "by", plan.Proof)
	_, err = planner.Check(p, plan, 50)
	fmt.Println("check:", err)
	// Output:
	// keeping everything: 60 bytes, cost 101
	// planned: 50 bytes, cost 111 - no plan costs less than 111 by exact
	// check: <nil>
}

// An infeasible budget is an error that says what would work.
func ExampleInfeasibleError() {
	p := &planner.Problem{
		Ops: []planner.Op{
			{Name: "a", Cost: 1, Det: planner.DetExact, Outputs: []int{0}},
			{Name: "b", Cost: 1, Det: planner.DetExact, Inputs: []int{0}, Outputs: []int{1}},
		},
		Values: []planner.Value{{Name: "x", Bytes: 10}, {Name: "y", Bytes: 6}},
	}
	_, err := planner.Solve(context.Background(), p, planner.Options{Budget: 12})
	fmt.Println(err)
	// Output:
	// planner: no plan within 12 bytes: the smallest budget found is 16, and no plan can do with less than 16; live at the peak: value 0 "x" (10 bytes), value 1 "y" (6 bytes)
}

func ExampleReadGraph() {
	g, err := planner.ReadGraph(strings.NewReader(`{"ram": [4, 2, 1], "cost": [10, 20, 5], "pred": [[], [0], [0, 1]], "fixed_ram": 3}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(g.Problem.Ops), "ops, peak", g.NoRematPeak)
	// Output: 3 ops, peak 10
}

func ExampleFromDirected() {
	g := simple.NewDirectedGraph()
	g.SetEdge(simple.Edge{F: simple.Node(7), T: simple.Node(3)})
	p, ids, err := planner.FromDirected(g, func(int64) int64 { return 1 }, func(id int64) int64 { return id })
	fmt.Println(ids, p.Order, err)
	_ = p.WriteDOT(os.Stdout, nil)
	// Output:
	// [3 7] [1 0] <nil>
	// digraph "" {
	//   node [shape=box];
	//   n0 [label="3\ncost 1"];
	//   n1 [label="7\ncost 1"];
	//   n1 -> n0 [label="7"];
	// }
}

// What a policy that others use would cost on the same graph, and what the
// planner does with the bytes that the policy needs.
func ExamplePlanSaving() {
	g, err := planner.ReadGraph(strings.NewReader(`{
		"ram":  [10, 10, 10, 10, 1, 10, 10, 10, 10],
		"cost": [4, 9, 4, 9, 1, 18, 8, 18, 8],
		"pred": [[], [0], [1], [2], [3], [4, 2], [5, 1], [6, 0], [7]],
		"first_backward_or_loss": 4}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	save := make([]bool, len(g.Problem.Values))
	save[1] = true // one checkpoint in the middle
	theirs, err := planner.PlanSaving(context.Background(), g.Problem, save, g.FirstBackward)
	if err != nil {
		fmt.Println(err)
		return
	}
	ours, err := planner.Solve(context.Background(), g.Problem, planner.Options{Budget: theirs.PeakBytes})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the policy:", theirs.PeakBytes, "bytes, cost", theirs.Cost)
	fmt.Println("the planner:", ours.PeakBytes, "bytes, cost", ours.Cost, ours.Proof)
	// Output:
	// the policy: 31 bytes, cost 83
	// the planner: 31 bytes, cost 83 exact
}
