package planner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// ParetoPoint is one budget of a curve.
type ParetoPoint struct {
	BudgetBytes int64   `json:"budget_bytes"`
	PeakBytes   int64   `json:"peak_bytes"`
	Cost        int64   `json:"cost"`
	LowerBound  int64   `json:"lower_bound"`
	Overhead    float64 `json:"overhead"`
	Bound       float64 `json:"bound"` // of the overhead
	Proof       string  `json:"proof"`
	Solver      string  `json:"solver"`

	Plan *Plan `json:"-"`
}

// ParetoMark is a plan of a baseline, for comparison.
type ParetoMark struct {
	Name      string  `json:"name"`
	PeakBytes int64   `json:"peak_bytes"`
	Overhead  float64 `json:"overhead"`
}

// ParetoCurve is overhead against memory.
type ParetoCurve struct {
	Name         string        `json:"name"`
	BaseCost     int64         `json:"base_cost"`
	SaveAllBytes int64         `json:"save_all_bytes"`
	MinBytes     int64         `json:"min_bytes"` // smallest budget found
	Points       []ParetoPoint `json:"points"`    // by budget, largest first
	Marks        []ParetoMark  `json:"marks"`
}

// Pareto plans for n budgets between the smallest that it finds and the peak of
// the save-everything plan. Each point starts from the plans of the others: a
// plan for a smaller budget also serves a larger one, so costs never rise with
// the budget, and neither do bounds. Options.Steps counts for each point;
// Options.Budget is not read. boundary is as in PlanBaseline.
func Pareto(ctx context.Context, p *Problem, n int, boundary int, opt Options) (*ParetoCurve, error) {
	all, err := saveAll(p)
	if err != nil {
		return nil, err
	}
	low, err := MinBudgetOptions(ctx, p, opt)
	if err != nil {
		return nil, err
	}
	c := &ParetoCurve{Name: p.Name, BaseCost: all.BaseCost, SaveAllBytes: all.PeakBytes, MinBytes: low.BudgetBytes,
		Points: []ParetoPoint{}, Marks: []ParetoMark{}}
	n = max(n, 2)
	for k := 0; k < n; k++ {
		o := opt
		o.Budget = all.PeakBytes - int64(float64(all.PeakBytes-low.BudgetBytes)*float64(k)/float64(n-1))
		if k == n-1 {
			o.Budget = low.BudgetBytes
		}
		plan, err := Solve(ctx, p, o)
		var inf *InfeasibleError
		if errors.As(err, &inf) {
			continue
		}
		if err != nil {
			return nil, err
		}
		c.Points = append(c.Points, ParetoPoint{BudgetBytes: o.Budget, LowerBound: plan.LowerBound, Proof: plan.Proof, Plan: plan})
	}
	// A cheaper plan of a smaller budget serves; a bound of a larger budget
	// holds.
	for k := len(c.Points) - 2; k >= 0; k-- {
		if next := c.Points[k+1].Plan; next.Cost < c.Points[k].Plan.Cost {
			c.Points[k].Plan = next
		}
	}
	for k := range c.Points {
		pt := &c.Points[k]
		if k > 0 && c.Points[k-1].LowerBound > pt.LowerBound {
			pt.LowerBound, pt.Proof = c.Points[k-1].LowerBound, c.Points[k-1].Proof
		}
		pt.PeakBytes, pt.Cost, pt.Solver = pt.Plan.PeakBytes, pt.Plan.Cost, pt.Plan.Solver
		if c.BaseCost > 0 {
			pt.Overhead = float64(pt.Cost-c.BaseCost) / float64(c.BaseCost)
			pt.Bound = float64(pt.LowerBound-c.BaseCost) / float64(c.BaseCost)
		}
	}
	for _, b := range Baselines() {
		if b.Name == "save-all" {
			continue
		}
		seen := int64(-1)
		for _, share := range []float64{0.8, 0.6, 0.4, 0.2} {
			plan, err := PlanBaseline(ctx, p, b.Name, low.BudgetBytes+int64(share*float64(all.PeakBytes-low.BudgetBytes)), boundary)
			if err != nil || plan.PeakBytes == seen {
				continue
			}
			seen = plan.PeakBytes
			c.Marks = append(c.Marks, ParetoMark{b.Name, plan.PeakBytes, plan.Overhead})
		}
	}
	return c, nil
}

// WriteJSON writes the curve as one JSON document.
func (c *ParetoCurve) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(c)
}

// WriteHTML writes the curve as a page that needs nothing else: an SVG picture
// with plan, bound and the baselines, and the table of its points.
func (c *ParetoCurve) WriteHTML(w io.Writer) error {
	const width, height, left, right, top, bottom = 860, 480, 70, 190, 40, 60
	maxY := 0.01
	for _, p := range c.Points {
		maxY = math.Max(maxY, p.Overhead)
	}
	shown := 0.0
	for _, m := range c.Marks {
		shown = math.Max(shown, m.Overhead)
	}
	maxY = math.Min(math.Max(maxY, shown), 3*maxY) * 1.08
	lo, hi := float64(c.MinBytes), float64(c.SaveAllBytes)
	if hi <= lo {
		hi = lo + 1
	}
	x := func(b int64) float64 { return left + (float64(b)-lo)/(hi-lo)*(width-left-right) }
	y := func(o float64) float64 { return height - bottom - o/maxY*(height-top-bottom) }
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui,sans-serif" font-size="12" role="img" aria-label="overhead against memory">`, width, height)
	fmt.Fprintf(&s, `<rect width="%d" height="%d" fill="#fff"/>`, width, height)
	for k := 0; k <= 5; k++ {
		o := maxY * float64(k) / 5
		fmt.Fprintf(&s, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#e3e3e3"/><text x="%d" y="%.1f" text-anchor="end" fill="#444">%.1f %%</text>`,
			left, width-right, y(o), y(o), left-8, y(o)+4, 100*o)
		b := c.MinBytes + int64((hi-lo)*float64(k)/5)
		fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle" fill="#444">%.0f %%</text>`, x(b), height-bottom+20, 100*float64(b)/float64(max(c.SaveAllBytes, 1)))
	}
	fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="middle" fill="#222">memory, in %% of keeping everything (%d)</text>`, left+(width-left-right)/2, height-18, c.SaveAllBytes)
	fmt.Fprintf(&s, `<text x="16" y="%d" transform="rotate(-90 16 %d)" text-anchor="middle" fill="#222">extra cost</text>`, height/2, height/2)
	fmt.Fprintf(&s, `<text x="%d" y="22" font-size="15" fill="#111">%s</text>`, left, html.EscapeString(c.Name))
	line := func(color, dash string, value func(p ParetoPoint) float64) {
		s.WriteString(`<polyline fill="none" stroke-width="2" stroke="` + color + `" stroke-dasharray="` + dash + `" points="`)
		for _, p := range c.Points {
			fmt.Fprintf(&s, "%.1f,%.1f ", x(p.BudgetBytes), y(value(p)))
		}
		s.WriteString(`"/>`)
	}
	line("#999", "5 4", func(p ParetoPoint) float64 { return p.Bound })
	line("#0b62c4", "", func(p ParetoPoint) float64 { return p.Overhead })
	for _, p := range c.Points {
		fmt.Fprintf(&s, `<circle cx="%.1f" cy="%.1f" r="3" fill="#0b62c4"><title>%d: %.3f %% (bound %.3f %%, %s)</title></circle>`,
			x(p.BudgetBytes), y(p.Overhead), p.BudgetBytes, 100*p.Overhead, 100*p.Bound, html.EscapeString(p.Proof))
	}
	colors := []string{"#c0392b", "#d68910", "#7d3c98", "#148f77", "#5d6d7e", "#a04000", "#1f618d", "#b03a8c"}
	colorOf := func(name string) string {
		k := 0
		for _, b := range Baselines()[1:] {
			if b.Name == name {
				return colors[k%len(colors)]
			}
			k++
		}
		return "#000"
	}
	for _, m := range c.Marks {
		if m.Overhead > maxY {
			continue
		}
		fmt.Fprintf(&s, `<rect x="%.1f" y="%.1f" width="7" height="7" fill="%s"><title>%s: %d bytes, %.2f %%</title></rect>`,
			x(m.PeakBytes)-3.5, y(m.Overhead)-3.5, colorOf(m.Name), html.EscapeString(m.Name), m.PeakBytes, 100*m.Overhead)
	}
	legend := func(k int, color, text string) {
		fmt.Fprintf(&s, `<rect x="%d" y="%d" width="12" height="4" fill="%s"/><text x="%d" y="%d" fill="#222">%s</text>`,
			width-right+20, top+10+20*k, color, width-right+38, top+16+20*k, html.EscapeString(text))
	}
	legend(0, "#0b62c4", "plan")
	legend(1, "#999", "lower bound")
	for k, b := range Baselines()[1:] {
		legend(k+2, colorOf(b.Name), b.Name)
	}
	s.WriteString(`</svg>`)
	var t strings.Builder
	t.WriteString(`<table><tr><th>budget</th><th>peak</th><th>overhead %</th><th>bound %</th><th>proof</th><th>solver</th></tr>`)
	for _, p := range c.Points {
		fmt.Fprintf(&t, `<tr><td>%d</td><td>%d</td><td>%.3f</td><td>%.3f</td><td>%s</td><td>%s</td></tr>`,
			p.BudgetBytes, p.PeakBytes, 100*p.Overhead, 100*p.Bound, html.EscapeString(p.Proof), html.EscapeString(p.Solver))
	}
	t.WriteString(`</table>`)
	_, err := fmt.Fprintf(w, "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>%s</title><style>body{font:14px system-ui,sans-serif;max-width:900px;margin:2em auto}table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}</style><body>%s%s</body></html>\n",
		html.EscapeString(c.Name), s.String(), t.String())
	return err
}
