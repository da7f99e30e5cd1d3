// Package planner measures the planner on published graphs and on graphs that
// it generates, next to published figures. It is run by "reprise bench planner"
// and by the long tests.
package planner

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"reprise/planner"
	"reprise/planner/pack"
)

// Options of Run.
type Options struct {
	Data     string // directory with graphs/, dtr/ and minimalloc/; see FindData
	Steps    int64  // per plan, as in planner.Options; 0 is the default of each case
	Only     string // part of a case's name; "" is all
	Progress func(line string)
}

// Row is one measurement. Percentages are of the base cost.
type Row struct {
	Suite     string  `json:"suite"`
	Case      string  `json:"case"`
	Ops       int     `json:"ops"`
	Budget    string  `json:"budget"`
	Overhead  float64 `json:"overhead_percent"` // pack: arena in bytes
	Bound     float64 `json:"bound_percent"`    // pack: lower bound in bytes
	Gap       float64 `json:"gap_percent"`
	Seconds   float64 `json:"seconds"`
	CPU       float64 `json:"cpu_seconds"` // of this process meanwhile; the difference is waiting for a core
	Solver    string  `json:"solver"`
	Proof     string  `json:"proof"`
	Published string  `json:"published"`
	Goal      string  `json:"goal"`
	Met       bool    `json:"met"`
	Error     string  `json:"error,omitempty"`
}

// Table is the result of Run.
type Table struct {
	Rows []Row `json:"rows"`
}

// FindData walks up from dir to a directory that has shared/planner-data next
// to it, or returns "".
func FindData(dir string) string {
	for {
		path := filepath.Join(dir, "..", "shared", "planner-data")
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			return path
		}
		up := filepath.Dir(dir)
		if up == dir {
			return ""
		}
		dir = up
	}
}

// figure is a graph and a budget with what is known about them.
type figure struct {
	graph     string
	budget    float64 // GB × 1,048,576 units if positive, % of the peak if negative
	steps     int64
	published string
	goal      string
	overhead  float64 // goal, %; negative: none
	gap       float64 // goal, % of base cost; negative: none
}

const (
	resnet    = "monet_resnet50_184"
	mobilenet = "monet_mobilenetv2_272"
	unet      = "monet_unet_11"
	vgg       = "monet_vgg16_176"
	cm1       = "moccasin_fcn_8_vgg_MLSys_32_416_608_3_train_nx"
	cm2       = "moccasin_ResNet50_MLSys_256_224_224_3_train_nx"
	rl1       = "moccasin_random_layered_n100_w0_27_nlv0_75_ed0_2_scd0_14"
	rl2       = "moccasin_random_layered_n250_w0_43_nlv0_75_ed0_2_scd0_14"
	rl4       = "moccasin_random_layered_n1000_w0_31_nlv0_75_ed0_2_scd0_14"
)

func figures() []figure {
	const none = -1
	return []figure{
		{resnet, 10, 0, "Gurobi 24 h: 6.030 / 6.035", "gap ≤ 0.01", none, 0.01},
		{resnet, 9, 0, "Gurobi 24 h: 7.006 / 7.011", "gap ≤ 0.01", none, 0.01},
		{resnet, 8, 0, "Gurobi 24 h: 7.763 / 8.299", "gap ≤ 0.01", none, 0.01},
		{resnet, 7, 0, "Gurobi 24 h: 8.710 / 10.065", "≤ 9.70, gap ≤ 0.30", 9.70, 0.30},
		{resnet, 6, 0, "Gurobi 24 h: 9.976 / 11.462", "≤ 11.40", 11.40, none},
		{resnet, 5, 0, "Gurobi 24 h: 10.422 / 20.524", "≤ 14.0", 14.0, none},
		{mobilenet, 7, 0, "Gurobi 24 h: 9.057 / 9.067", "≤ 9.06", 9.06, none},
		{mobilenet, 6, 0, "Gurobi 24 h: 10.772 / 11.375", "≤ 11.30", 11.30, none},
		{unet, 6, 0, "Gurobi 777 s: 6.028 / 6.035", "≤ 6.035", 6.0355, none},
		{unet, 5, 0, "Gurobi 13,381 s: 11.154 / 11.162", "≤ 11.16", 11.165, none},
		{vgg, 8, 0, "Gurobi 27 s: 4.157 / 4.157", "4.157, proven", 4.1575, 0},
		{cm1, -90, 0, "Checkmate 0.0, Moccasin 0.0, FastSA 0.1", "proven", none, 0},
		{cm1, -80, 0, "Checkmate 0.1, Moccasin 0.1, FastSA 0.1", "proven", none, 0},
		{cm1, -70, 0, "FastSA 3.0", "proven", none, 0},
		{cm2, -90, 0, "Checkmate 0.1, Moccasin 0.2, FastSA 0.2", "proven", none, 0},
		{cm2, -80, 0, "Checkmate 0.3, Moccasin 0.3, FastSA 0.4", "proven", none, 0},
		{cm2, -70, 0, "FastSA 0.8", "proven", none, 0},
		{rl1, -80, 0, "Checkmate 2.3, Moccasin 2.3, FastSA 0.3", "0.00", 0.005, none},
		{rl1, -70, 0, "FastSA 2.2", "≤ 2.15", 2.15, none},
		{rl2, -80, 0, "Moccasin 4.9, FastSA 0.0", "0.00", 0.005, none},
		{rl2, -70, 0, "FastSA 2.6", "≤ 0.5", 0.5, none},
		{rl4, -80, 0, "Moccasin 3.4, FastSA 2.5", "≤ 1.2", 1.2, none},
		{rl4, -70, 0, "FastSA 7.4", "≤ 6.0", 6.0, none},
		{"synth_transformer_144", -50, 0, "prototype 5.070 / 5.076", "gap ≤ 0.1", none, 0.1},
		{"synth_transformer_144", -30, 0, "prototype 12.510 / 12.521", "gap ≤ 0.1", none, 0.1},
		{"synth_transformer_144", -15, 0, "prototype 18.233 / 18.240", "gap ≤ 0.1", none, 0.1},
		{"synth_transformer_1470", -50, 0, "", "gap ≤ 0.2", none, 0.2},
		{"synth_transformer_1470", -30, 0, "", "gap ≤ 0.2", none, 0.2},
		{"synth_transformer_1470", -15, 0, "", "gap ≤ 0.2", none, 0.2},
	}
}

// Run measures everything, on one thread.
func Run(ctx context.Context, opt Options) (*Table, error) {
	if opt.Data == "" {
		return nil, errors.New("bench planner: no planner data: Options.Data is empty")
	}
	t := &Table{Rows: []Row{}}
	add := func(r Row) {
		t.Rows = append(t.Rows, r)
		if opt.Progress != nil {
			opt.Progress(r.line())
		}
	}
	for _, f := range figures() {
		if !strings.Contains(f.graph, opt.Only) || ctx.Err() != nil {
			continue
		}
		r, err := f.measure(ctx, opt)
		if err != nil {
			return nil, err
		}
		add(r)
	}
	if strings.Contains("minimalloc", opt.Only) {
		for _, name := range strings.Split("ABCDEFGHIJK", "") {
			r, err := packing(opt.Data, name)
			if err != nil {
				return nil, err
			}
			add(r)
		}
	}
	if strings.Contains("dtr", opt.Only) {
		if err := traces(ctx, opt, add); err != nil {
			return nil, err
		}
	}
	for _, suite := range []struct {
		name string
		run  func(context.Context, Options, func(Row)) error
	}{{"models", models}, {"policies", policies}, {"scaling", scaling}} {
		if strings.Contains(suite.name, opt.Only) {
			if err := suite.run(ctx, opt, add); err != nil {
				return nil, err
			}
		}
	}
	return t, ctx.Err()
}

func (f *figure) measure(ctx context.Context, opt Options) (Row, error) {
	file, err := os.Open(filepath.Join(opt.Data, "graphs", f.graph+".json"))
	if err != nil {
		return Row{}, err
	}
	defer file.Close()
	g, err := planner.ReadGraph(file)
	if err != nil {
		return Row{}, err
	}
	budget, label := int64(f.budget*1048576), fmt.Sprintf("%g GB", f.budget)
	if f.budget < 0 {
		budget, label = int64(-f.budget/100*float64(g.NoRematPeak)), fmt.Sprintf("%g %%", -f.budget)
	}
	steps := f.steps
	if opt.Steps > 0 {
		steps = opt.Steps
	}
	r := Row{Suite: "graphs", Case: f.graph, Ops: len(g.Problem.Ops), Budget: label, Published: f.published, Goal: f.goal}
	clock := startClock()
	plan, err := planner.Solve(ctx, g.Problem, planner.Options{Budget: budget, Steps: steps})
	clock.stop(&r)
	if err != nil {
		r.Error = err.Error()
		return r, nil
	}
	r.fill(plan)
	const eps = 1e-9
	r.Met = (f.overhead < 0 || r.Overhead <= f.overhead+eps) && (f.gap < 0 || r.Gap <= f.gap+eps)
	return r, nil
}

func (r *Row) fill(plan *planner.Plan) {
	r.Overhead = 100 * plan.Overhead
	r.Gap = 100 * plan.Gap
	r.Bound = r.Overhead - r.Gap
	r.Solver, r.Proof = plan.Solver, plan.Proof
}

// packing runs one of MiniMalloc's problems.
func packing(data, name string) (Row, error) {
	f, err := os.Open(filepath.Join(data, "minimalloc", "benchmarks", "challenging", name+".1048576.csv"))
	if err != nil {
		return Row{}, err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return Row{}, err
	}
	var items []pack.Item
	for _, row := range rows[1:] {
		var n [3]int64
		for k := range n {
			if n[k], err = strconv.ParseInt(strings.TrimSpace(row[k+1]), 10, 64); err != nil {
				return Row{}, err
			}
		}
		items = append(items, pack.Item{Start: int(n[0]), End: int(n[1]) - 1, Size: n[2]})
	}
	clock := startClock()
	res, err := pack.Search(items, pack.Options{})
	if err != nil {
		return Row{}, err
	}
	r := Row{Suite: "pack", Case: "minimalloc " + name, Ops: len(items), Overhead: float64(res.Arena), Bound: float64(res.LowerBound),
		Goal: "at the lower bound", Met: res.Proven, Published: "MiniMalloc: within 1,048,576"}
	clock.stop(&r)
	r.Gap = 100 * float64(res.Arena-res.LowerBound) / float64(res.LowerBound)
	return r, pack.Verify(items, res.Offsets, res.Arena)
}

// traces holds the planner against DTR's rule on DTR's own traces.
func traces(ctx context.Context, opt Options, add func(Row)) error {
	list, err := ReadTraces(filepath.Join(opt.Data, "dtr", "simrd_logs.zip"))
	if err != nil {
		return err
	}
	for _, tr := range list {
		all := planner.SaveAll(tr.Problem)
		for _, share := range []int{90, 70, 50, 30, 10} {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			budget := all.PeakBytes * int64(share) / 100
			r := Row{Suite: "dtr", Case: tr.Name, Ops: len(tr.Problem.Ops), Budget: fmt.Sprintf("%d %%", share), Goal: "not above DTR"}
			dtr, dtrErr := planner.PlanBaseline(ctx, tr.Problem, "dtr", budget, -1)
			r.Published = "DTR: out of memory"
			if dtrErr == nil {
				r.Published = fmt.Sprintf("DTR: %.3f", 100*dtr.Overhead)
			}
			clock := startClock()
			plan, err := planner.Solve(ctx, tr.Problem, planner.Options{Budget: budget, Steps: opt.Steps, Gap: 1e-4})
			clock.stop(&r)
			switch {
			case err != nil:
				r.Error = err.Error()
				r.Met = dtrErr != nil
			default:
				r.fill(plan)
				r.Met = dtrErr != nil || plan.Cost <= dtr.Cost
			}
			add(r)
		}
	}
	return nil
}

func (r *Row) line() string {
	mark := " "
	if r.Met {
		mark = "✓"
	}
	name := r.Case
	if len(name) > 34 {
		name = name[:34]
	}
	if r.Error != "" {
		msg := r.Error
		if len(msg) > 90 {
			msg = msg[:90] + "…"
		}
		return fmt.Sprintf("%s %-34s %6d %8s %s [%s]", mark, name, r.Ops, r.Budget, msg, r.Published)
	}
	if r.Suite == "pack" {
		return fmt.Sprintf("%s %-34s %6d %8s arena %.0f, lower bound %.0f (%.2f %%), %.2f s", mark, name, r.Ops, "", r.Overhead, r.Bound, r.Gap, r.Seconds)
	}
	return fmt.Sprintf("%s %-34s %6d %8s plan %7.3f bound %7.3f gap %6.3f  %6.2f s (%.2f CPU) %-18s %s [%s]",
		mark, name, r.Ops, r.Budget, r.Overhead, r.Bound, r.Gap, r.Seconds, r.CPU, r.Proof, r.Goal, r.Published)
}

// WriteText writes one line for each row.
func (t *Table) WriteText(w io.Writer) error {
	for i := range t.Rows {
		if _, err := fmt.Fprintln(w, t.Rows[i].line()); err != nil {
			return err
		}
	}
	return nil
}

// WriteMarkdown writes a table for each suite.
func (t *Table) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# The planner, measured\n\nWritten by `reprise bench planner`. Overheads in % of the base cost, one thread; CPU seconds are those of the process, wall seconds depend on what else the machine does. docs/planner.md says what the suites are.\n")
	suite := ""
	for i := range t.Rows {
		r := &t.Rows[i]
		if r.Suite != suite {
			suite = r.Suite
			fmt.Fprintf(&b, "\n## %s\n\n| case | ops | budget | plan | bound | gap | proof | CPU s | s | goal | met | published or others |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n", suite)
		}
		met := "no"
		if r.Met {
			met = "yes"
		}
		plan := fmt.Sprintf("%.3f | %.3f | %.3f", r.Overhead, r.Bound, r.Gap)
		if r.Suite == "pack" {
			plan = fmt.Sprintf("%.0f | %.0f | %.3f", r.Overhead, r.Bound, r.Gap)
		}
		if r.Error != "" {
			plan = "none | | "
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %.2f | %.2f | %s | %s | %s |\n", r.Case, r.Ops, r.Budget, plan, r.Proof, r.CPU, r.Seconds, r.Goal, met, r.Published)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteJSON writes the table as one document.
func (t *Table) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(t)
}
