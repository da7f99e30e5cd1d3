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
	opt := Options{Data: data(t), Only: vgg, Steps: 20_000, Progress: func(line string) { t.Log(line) }}
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
