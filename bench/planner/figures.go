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
	"math"
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
	Only     string // measures the rows with this in "suite/case budget"; "" is all
	Before   *Table // rows that were measured before: those are taken over, not measured again
	Revision string // of what is measured, put into each row
	Progress func(line string)
	Save     func(*Table) error // called after each row with all rows there are, so that a run that ends early is not lost
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
	CPU       float64 `json:"cpu_seconds"`  // of this process meanwhile; the difference is waiting for a core
	Memory    int64   `json:"memory_bytes"` // most that the process had resident meanwhile; 0 where the system does not say
	Load      string  `json:"load"`         // load average of the machine in the minute before the row ended
	Revision  string  `json:"revision"`     // of what was measured
	Solver    string  `json:"solver"`
	Proof     string  `json:"proof"`
	Published string  `json:"published"`
	Goal      string  `json:"goal"`
	Met       bool    `json:"met"`
	Error     string  `json:"error,omitempty"`
}

// Table is the result of Run.
type Table struct {
	Format  string `json:"format"`
	Machine string `json:"machine"`
	Rows    []Row  `json:"rows"`
}

const format = "reprise.bench.planner/1"

// ReadTable reads what WriteJSON wrote.
func ReadTable(r io.Reader) (*Table, error) {
	t := &Table{}
	if err := json.NewDecoder(r).Decode(t); err != nil {
		return nil, err
	}
	if t.Format != format {
		return nil, fmt.Errorf("the table's format is %q, not %q", t.Format, format)
	}
	return t, nil
}

func (r *Row) key() string { return r.Suite + "/" + r.Case + " " + r.Budget }

// task is a row to be measured.
type task struct {
	row Row // what is known before
	run func(ctx context.Context, r *Row) error
}

// solve fills a row with the plan of a problem.
func solve(ctx context.Context, r *Row, p *planner.Problem, o planner.Options) *planner.Plan {
	clock := startClock()
	plan, err := planner.Solve(ctx, p, o)
	clock.stop(r)
	if err != nil {
		r.Error = err.Error()
		return nil
	}
	r.fill(plan)
	return plan
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
		{resnet, 10, "Gurobi 24 h: 6.030 / 6.035", "gap ≤ 0.01", none, 0.01},
		{resnet, 9, "Gurobi 24 h: 7.006 / 7.011", "gap ≤ 0.01", none, 0.01},
		{resnet, 8, "Gurobi 24 h: 7.763 / 8.299", "gap ≤ 0.01", none, 0.01},
		{resnet, 7, "Gurobi 24 h: 8.710 / 10.065", "≤ 9.70, gap ≤ 0.30", 9.70, 0.30},
		{resnet, 6, "Gurobi 24 h: 9.976 / 11.462", "≤ 11.40", 11.40, none},
		{resnet, 5, "Gurobi 24 h: 10.422 / 20.524", "≤ 14.0", 14.0, none},
		{mobilenet, 7, "Gurobi 24 h: 9.057 / 9.067", "≤ 9.06", 9.06, none},
		{mobilenet, 6, "Gurobi 24 h: 10.772 / 11.375", "≤ 11.30", 11.30, none},
		{unet, 6, "Gurobi 777 s: 6.028 / 6.035", "≤ 6.035", 6.0355, none},
		{unet, 5, "Gurobi 13,381 s: 11.154 / 11.162", "≤ 11.16", 11.16, none},
		{vgg, 8, "Gurobi 27 s: 4.157 / 4.157", "4.157, proven", 4.1575, 0},
		{cm1, -90, "Checkmate 0.0, Moccasin 0.0, FastSA 0.1", "proven", none, 0},
		{cm1, -80, "Checkmate 0.1, Moccasin 0.1, FastSA 0.1", "proven", none, 0},
		{cm1, -70, "FastSA 3.0", "proven", none, 0},
		{cm2, -90, "Checkmate 0.1, Moccasin 0.2, FastSA 0.2", "proven", none, 0},
		{cm2, -80, "Checkmate 0.3, Moccasin 0.3, FastSA 0.4", "proven", none, 0},
		{cm2, -70, "FastSA 0.8", "proven", none, 0},
		{rl1, -80, "Checkmate 2.3, Moccasin 2.3, FastSA 0.3", "0.00", 0.005, none},
		{rl1, -70, "FastSA 2.2", "≤ 2.15", 2.15, none},
		{rl2, -80, "Moccasin 4.9, FastSA 0.0", "0.00", 0.005, none},
		{rl2, -70, "FastSA 2.6", "≤ 0.5", 0.5, none},
		{rl4, -80, "Moccasin 3.4, FastSA 2.5", "≤ 1.2", 1.2, none},
		{rl4, -70, "FastSA 7.4", "≤ 6.0", 6.0, none},
		{"synth_transformer_144", -50, "prototype 5.070 / 5.076", "gap ≤ 0.1", none, 0.1},
		{"synth_transformer_144", -30, "prototype 12.510 / 12.521", "gap ≤ 0.1", none, 0.1},
		{"synth_transformer_144", -15, "prototype 18.233 / 18.240", "gap ≤ 0.1", none, 0.1},
		{"synth_transformer_1470", -50, "", "gap ≤ 0.2", none, 0.2},
		{"synth_transformer_1470", -30, "", "gap ≤ 0.2", none, 0.2},
		{"synth_transformer_1470", -15, "", "gap ≤ 0.2", none, 0.2},
	}
}

// Run measures everything, on one thread.
func Run(ctx context.Context, opt Options) (*Table, error) {
	if opt.Data == "" {
		return nil, errors.New("bench planner: no planner data: Options.Data is empty")
	}
	t := &Table{Format: format, Machine: machine(), Rows: []Row{}}
	before := map[string]Row{}
	if opt.Before != nil {
		for _, r := range opt.Before.Rows {
			before[r.key()] = r
		}
	}
	for _, s := range []struct {
		name  string
		tasks func(context.Context, Options) ([]task, error)
	}{{"graphs", graphs}, {"pack", packs}, {"dtr", traces}, {"models", models}, {"policies", policies}, {"scaling", scaling}} {
		if suite, _, ok := strings.Cut(opt.Only, "/"); ok && suite != s.name && opt.Before == nil {
			continue
		}
		tasks, err := s.tasks(ctx, opt)
		if err != nil {
			return nil, err
		}
		for _, k := range tasks {
			r := k.row
			r.Suite = s.name
			if old, ok := before[r.key()]; ok {
				t.Rows = append(t.Rows, old)
				continue
			}
			if !strings.Contains(r.key(), opt.Only) {
				continue
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err := k.run(ctx, &r); err != nil {
				return nil, err
			}
			if ctx.Err() != nil { // a row that was cut short is none
				return nil, ctx.Err()
			}
			r.Revision = opt.Revision
			t.Rows = append(t.Rows, r)
			if opt.Progress != nil {
				opt.Progress(r.line())
			}
			if opt.Save != nil {
				if err := opt.Save(t.and(opt.Before)); err != nil {
					return nil, err
				}
			}
		}
	}
	return t, nil
}

// and is t with the rows of an earlier table that it lacks.
func (t *Table) and(before *Table) *Table {
	if before == nil {
		return t
	}
	all := &Table{t.Format, t.Machine, append([]Row{}, t.Rows...)}
	have := map[string]bool{}
	for i := range t.Rows {
		have[t.Rows[i].key()] = true
	}
	for _, r := range before.Rows {
		if !have[r.key()] {
			all.Rows = append(all.Rows, r)
		}
	}
	return all
}

// Without is t without the rows that have text in "suite/case budget".
func (t *Table) Without(text string) *Table {
	out := &Table{Format: t.Format, Machine: t.Machine, Rows: []Row{}}
	for _, r := range t.Rows {
		if !strings.Contains(r.key(), text) {
			out.Rows = append(out.Rows, r)
		}
	}
	return out
}

func graphs(_ context.Context, opt Options) ([]task, error) {
	var list []task
	for _, f := range figures() {
		label := fmt.Sprintf("%g GB", f.budget)
		if f.budget < 0 {
			label = fmt.Sprintf("%g %%", -f.budget)
		}
		list = append(list, task{Row{Case: f.graph, Budget: label, Published: f.published, Goal: f.goal}, func(ctx context.Context, r *Row) error {
			g, err := graph(opt.Data, f.graph)
			if err != nil {
				return err
			}
			budget := int64(f.budget * 1048576)
			if f.budget < 0 {
				budget = int64(-f.budget / 100 * float64(g.NoRematPeak))
			}
			r.Ops = len(g.Problem.Ops)
			if solve(ctx, r, g.Problem, planner.Options{Budget: budget, Steps: opt.Steps}) != nil {
				const eps = 1e-9
				r.Met = (f.overhead < 0 || r.Overhead <= f.overhead+eps) && (f.gap < 0 || r.Gap <= f.gap+eps)
			}
			return nil
		}})
	}
	return list, nil
}

func graph(data, name string) (*planner.Graph, error) {
	file, err := os.Open(filepath.Join(data, "graphs", name+".json"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return planner.ReadGraph(file)
}

func (r *Row) fill(plan *planner.Plan) {
	r.Overhead = 100 * plan.Overhead
	r.Gap = 100 * plan.Gap
	r.Bound = r.Overhead - r.Gap
	r.Solver, r.Proof = plan.Solver, plan.Proof
}

// packs are MiniMalloc's problems.
func packs(_ context.Context, opt Options) ([]task, error) {
	var list []task
	for _, name := range strings.Split("ABCDEFGHIJK", "") {
		list = append(list, task{Row{Case: "minimalloc " + name, Goal: "at the lower bound", Published: "MiniMalloc: within 1,048,576"}, func(_ context.Context, r *Row) error {
			items, err := packing(opt.Data, name)
			if err != nil {
				return err
			}
			clock := startClock()
			res, err := pack.Search(items, pack.Options{})
			clock.stop(r)
			if err != nil {
				return err
			}
			r.Ops, r.Overhead, r.Bound, r.Met = len(items), float64(res.Arena), float64(res.LowerBound), res.Proven
			r.Gap = 100 * float64(res.Arena-res.LowerBound) / float64(res.LowerBound)
			return pack.Verify(items, res.Offsets, res.Arena)
		}})
	}
	return list, nil
}

func packing(data, name string) ([]pack.Item, error) {
	f, err := os.Open(filepath.Join(data, "minimalloc", "benchmarks", "challenging", name+".1048576.csv"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, err
	}
	var items []pack.Item
	for _, row := range rows[1:] {
		var n [3]int64
		for k := range n {
			if n[k], err = strconv.ParseInt(strings.TrimSpace(row[k+1]), 10, 64); err != nil {
				return nil, err
			}
		}
		items = append(items, pack.Item{Start: int(n[0]), End: int(n[1]) - 1, Size: n[2]})
	}
	return items, nil
}

// traces holds the planner against DTR's rule on DTR's own traces.
func traces(_ context.Context, opt Options) ([]task, error) {
	logs, err := ReadTraces(filepath.Join(opt.Data, "dtr", "simrd_logs.zip"))
	if err != nil {
		return nil, err
	}
	var list []task
	for _, tr := range logs {
		for _, share := range []int{90, 70, 50, 30, 10} {
			list = append(list, task{Row{Case: tr.Name, Ops: len(tr.Problem.Ops), Budget: fmt.Sprintf("%d %%", share), Goal: "not above DTR"}, func(ctx context.Context, r *Row) error {
				budget := planner.SaveAll(tr.Problem).PeakBytes * int64(share) / 100
				dtr, dtrErr := planner.PlanBaseline(ctx, tr.Problem, "dtr", budget, -1)
				r.Published = "DTR: out of memory"
				if dtrErr == nil {
					r.Published = fmt.Sprintf("DTR: %.3f", 100*dtr.Overhead)
				}
				plan := solve(ctx, r, tr.Problem, planner.Options{Budget: budget, Steps: opt.Steps, Gap: 1e-4})
				r.Met = dtrErr != nil || plan != nil && plan.Cost <= dtr.Cost
				return nil
			}})
		}
	}
	return list, nil
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
		return fmt.Sprintf("%s %-34s %6d %8s arena %.0f, lower bound %.0f (%.2f %%), %.2f s CPU (%.2f wall)", mark, name, r.Ops, "", r.Overhead, r.Bound, r.Gap, r.CPU, r.Seconds)
	}
	return fmt.Sprintf("%s %-34s %6d %8s plan %7.3f bound %7.3f gap %6.3f  %6.2f s CPU (%.2f wall), %d MiB %-18s %s [%s]",
		mark, name, r.Ops, r.Budget, r.Overhead, r.Bound, r.Gap, r.CPU, r.Seconds, r.Memory>>20, r.Proof, r.Goal, r.Published)
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
	fmt.Fprintf(&b, `# The planner, measured

Written by `+"`reprise bench planner`"+`, one thread of %s. Overheads in %% of the base cost. CPU seconds are those of the process;
wall seconds depend on what else the machine did: "load" is its load average when the row ended. Where a row was measured
on a machine at work, caches and cores were shared, so its CPU seconds are too many rather than too few. MiB is the most
that the process had resident. "Of" is the revision that was measured, with + where files had changed. docs/planner.md says
what the suites are and what was tried where a goal is not met.
`, t.Machine)
	suite := ""
	for i := range t.Rows {
		r := &t.Rows[i]
		if r.Suite != suite {
			suite = r.Suite
			fmt.Fprintf(&b, "\n## %s\n\n%s", suite, t.scaled(suite))
			b.WriteString("| case | ops | budget | plan | bound | gap | proof | CPU s | wall s | MiB | load | of | goal | met | published or others |\n|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|---|---|---|---|\n")
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
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %.2f | %.2f | %d | %s | %s | %s | %s | %s |\n", r.Case, r.Ops, r.Budget, plan, r.Proof, r.CPU, r.Seconds, r.Memory>>20, r.Load, r.Revision, r.Goal, met, r.Published)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// scaled says how CPU time and memory grow with ops in a suite of families of graphs, by least squares of the logarithms.
func (t *Table) scaled(suite string) string {
	if suite != "scaling" {
		return ""
	}
	var families []string
	points := map[string][]Row{}
	for _, r := range t.Rows {
		if r.Suite != suite || r.Error != "" {
			continue
		}
		f, _, _ := strings.Cut(r.Case, ",")
		if points[f] == nil {
			families = append(families, f)
		}
		points[f] = append(points[f], r)
	}
	var b strings.Builder
	for _, f := range families {
		if len(points[f]) < 2 {
			continue
		}
		fmt.Fprintf(&b, "%s: CPU time grows as ops^%.2f, memory as ops^%.2f.\n", f,
			exponent(points[f], func(r Row) float64 { return r.CPU }), exponent(points[f], func(r Row) float64 { return float64(r.Memory) }))
	}
	return b.String() + "\n"
}

// exponent is the slope of log y against log ops.
func exponent(rows []Row, y func(Row) float64) float64 {
	var n, sx, sy, sxx, sxy float64
	for _, r := range rows {
		v := y(r)
		if v <= 0 {
			continue
		}
		a, b := math.Log(float64(r.Ops)), math.Log(v)
		n, sx, sy, sxx, sxy = n+1, sx+a, sy+b, sxx+a*a, sxy+a*b
	}
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

// WriteJSON writes the table as one document.
func (t *Table) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(t)
}
