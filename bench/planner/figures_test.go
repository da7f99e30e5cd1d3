package planner

import (
	"os"
	"strings"
	"testing"

	"reprise/planner"
)

func data(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	path := FindData(dir)
	if path == "" {
		t.Skip("no shared/planner-data next to the repository")
	}
	return path
}

// TestFigures runs everything if REPRISE_LONG is set, and a few quick cases
// with few steps otherwise.
func TestFigures(t *testing.T) {
	opt := Options{Data: data(t), Only: "graphs/" + vgg, Steps: 20_000, Progress: func(line string) { t.Log(line) }}
	if os.Getenv("REPRISE_LONG") != "" {
		opt.Only, opt.Steps = os.Getenv("REPRISE_ONLY"), 0
	}
	table, err := Run(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) == 0 {
		t.Error("nothing was measured")
	}
	for _, r := range table.Rows {
		if strings.Contains(r.Error, "BUG") {
			t.Error(r.Error)
		}
	}
}

func TestModels(t *testing.T) {
	for _, m := range Models() {
		p, boundary := m.Graph()
		if err := p.Validate(); err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		if boundary <= 0 || boundary >= len(p.Ops) {
			t.Errorf("%s: boundary %d", m.Name, boundary)
		}
	}
}

func TestTraces(t *testing.T) {
	list, err := ReadTraces(data(t) + "/dtr/simrd_logs.zip")
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 8 {
		t.Errorf("%d traces, want 8", len(list))
	}
	for _, tr := range list {
		if _, err := planner.Check(tr.Problem, planner.SaveAll(tr.Problem), -1); err != nil {
			t.Errorf("%s: %v", tr.Name, err)
		}
	}
}

// TestResume: rows of an earlier run are taken over in their places, what they lack is measured, and each
// row is saved as it comes.
func TestResume(t *testing.T) {
	saved := 0
	opt := Options{Data: data(t), Only: "graphs/" + cm1, Steps: 20_000, Revision: "one", Save: func(*Table) error { saved++; return nil }}
	first, err := Run(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if len(first.Rows) != 3 || saved != 3 {
		t.Fatalf("%d rows, %d saved, want 3 of each", len(first.Rows), saved)
	}
	opt.Before, opt.Revision = first.Without(cm1+" 80 %"), "two"
	var last *Table
	opt.Save = func(t *Table) error { last = t; return nil }
	second, err := Run(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if len(second.Rows) != 3 || len(last.Rows) != 3 {
		t.Fatalf("%d rows, %d saved, want 3 of each", len(second.Rows), len(last.Rows))
	}
	for k, r := range second.Rows {
		if want := first.Rows[k]; r.Case != want.Case || r.Budget != want.Budget || r.Overhead != want.Overhead {
			t.Errorf("row %d: %s, %v; before %s, %v", k, r.key(), r.Overhead, want.key(), want.Overhead)
		}
		if want := map[bool]string{true: "two", false: "one"}[r.Budget == "80 %"]; r.Revision != want {
			t.Errorf("row %d was measured by %q, want %q", k, r.Revision, want)
		}
	}
	var text strings.Builder
	if err := second.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	again, err := ReadTable(strings.NewReader(text.String()))
	if err != nil || len(again.Rows) != 3 || again.Rows[1] != second.Rows[1] {
		t.Errorf("the table was read back as %v, %v", again, err)
	}
	if _, err := ReadTable(strings.NewReader("{}")); err == nil {
		t.Error("a table without format was read")
	}
}

func TestScaled(t *testing.T) {
	tb := &Table{Rows: []Row{{Suite: "scaling", Case: "a, 1", Ops: 100, CPU: 1, Memory: 10}, {Suite: "scaling", Case: "a, 2", Ops: 400, CPU: 8, Memory: 20}}}
	if got, want := tb.scaled("scaling"), "a: CPU time grows as ops^1.50, memory as ops^0.50.\n\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestGuidedHasItsShare: greedy by DTR's rule took more than the steps that the solvers before the cuts may spend, and what the
// cuts guide was not tried at all: 1.8 % above the bound on a graph of 50,000 ops, where 0.02 % can be had; here 0.95 and 0.01 %.
func TestGuidedHasItsShare(t *testing.T) {
	p, _ := Models()[0].Graph()
	plan, err := planner.Solve(t.Context(), p, planner.Options{Budget: planner.SaveAll(p).PeakBytes * 20 / 100, Steps: 3000})
	if err != nil {
		t.Fatal(err)
	}
	if plan.Gap > 0.002 {
		t.Errorf("%s is %.3f %% above the bound", plan.Solver, 100*plan.Gap)
	}
}
