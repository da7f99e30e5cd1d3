package planner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestBaselines holds the planner against every policy on random problems: it
// never costs more at the memory that the policy needs.
func TestBaselines(t *testing.T) {
	ctx := context.Background()
	for seed := uint64(0); seed < 60; seed++ {
		rng := rand.New(rand.NewPCG(seed, 7))
		p := simpleProblem(rng, 6+rng.IntN(20))
		all := SaveAll(p)
		for _, b := range Baselines() {
			plan, err := PlanBaseline(ctx, p, b.Name, all.PeakBytes*3/4, -1)
			if errors.Is(err, ErrOverBudget) || errors.Is(err, ErrNoChain) {
				continue
			}
			if err != nil {
				t.Fatalf("seed %d %s: %v", seed, b.Name, err)
			}
			ours, err := Solve(ctx, p, Options{Budget: plan.PeakBytes, Steps: 4000})
			if err != nil {
				t.Fatalf("seed %d %s: %v", seed, b.Name, err)
			}
			if ours.Cost > plan.Cost {
				t.Errorf("seed %d: %s costs %d at %d bytes, the planner %d", seed, b.Name, plan.Cost, plan.PeakBytes, ours.Cost)
			}
		}
	}
	if _, err := PlanBaseline(ctx, &Problem{}, "none such", 1, -1); err == nil {
		t.Error("an unknown policy is accepted")
	}
}

func TestPareto(t *testing.T) {
	p := simpleProblem(rand.New(rand.NewPCG(3, 8)), 18)
	p.Name = "a <curve>"
	c, err := Pareto(context.Background(), p, 6, -1, Options{Steps: 2000})
	if err != nil {
		t.Fatal(err)
	}
	for k, pt := range c.Points {
		if pt.LowerBound > pt.Cost || pt.PeakBytes > pt.BudgetBytes {
			t.Errorf("point %d: %+v", k, pt)
		}
		if k > 0 && (pt.Cost < c.Points[k-1].Cost || pt.LowerBound < c.Points[k-1].LowerBound) {
			t.Errorf("point %d is not monotone", k)
		}
	}
	var page, doc bytes.Buffer
	if err := c.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	if s := page.String(); !strings.Contains(s, "<svg") || strings.Contains(s, "<curve>") || strings.Contains(s, "NaN") {
		t.Error("the page is broken")
	}
	if err := c.WriteJSON(&doc); err != nil {
		t.Fatal(err)
	}
	if !json.Valid(doc.Bytes()) {
		t.Error("the JSON is broken")
	}
}

// TestSame runs the same search twice, and with more threads.
func TestSame(t *testing.T) {
	p := simpleProblem(rand.New(rand.NewPCG(5, 9)), 40)
	all := SaveAll(p)
	least, err := MinBudget(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	budget := (least.BudgetBytes + all.PeakBytes) / 2
	var first *Plan
	for _, threads := range []int{1, 1, 4} {
		plan, err := Solve(context.Background(), p, Options{Budget: budget, Steps: 5000, Threads: threads, Seed: 7})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = plan
		} else if len(plan.Order) != len(first.Order) || plan.Cost != first.Cost {
			t.Errorf("plans differ: %v, %v", first.Order, plan.Order)
		} else {
			for k := range plan.Order {
				if plan.Order[k] != first.Order[k] {
					t.Fatalf("plans differ at %d", k)
				}
			}
		}
	}
}
