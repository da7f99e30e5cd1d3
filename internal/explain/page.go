package explain

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"

	"reprise/internal/compile"
)

//go:embed page.css
var style string

//go:embed page.js
var script string

func escape(s string) string { return html.EscapeString(s) }

// pageData is what the page's script reads: one array of columns for ops and values, so that thousands
// of them stay small.
type pageData struct {
	Columns  []int     `json:"columns"` // position shown by each column of the picture
	Groups   []string  `json:"groups"`
	Stack    [][]int64 `json:"stack"` // bytes by group, by column
	Resident int64     `json:"resident"`
	Ops      [][]any   `json:"ops"`    // op, layer, source, ns, bytes in use (residents included), clone
	Values   [][]any   `json:"values"` // name, layer, type, bytes, fate, runs, at peak, ns to recompute, op, source, reason
}

// WriteHTML writes the page. It loads nothing from anywhere.
func WriteHTML(w io.Writer, r compile.Report, e *compile.Explanation) error {
	t := newTimeline(e)
	d := pageData{Columns: t.columns, Groups: t.groups, Stack: t.bytes, Resident: e.Memory.StepResidentBytes}
	for _, op := range e.Ops {
		d.Ops = append(d.Ops, []any{op.Op, op.Layer, op.Source, op.Ns, op.Bytes + e.Memory.StepResidentBytes, op.Clone})
	}
	for _, v := range e.Values {
		d.Values = append(d.Values, []any{v.Name, v.Layer, v.Type, v.Bytes, v.Fate, v.Runs, v.AtPeak, v.RecomputeNs, v.Op, v.Source, v.Reason})
	}
	data, err := json.Marshal(d) // escapes <, > and &, so that no name can end the script element
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>%s: plan and memory</title><style>%s</style></head><body>\n", escape(r.Model), style)
	fmt.Fprintf(&b, "<h1>%s</h1>\n", escape(r.Model))
	certificate(&b, r, e)
	fmt.Fprintf(&b, "<h2>Memory over the step</h2>\n<p>Bytes of the arena by layer, op by op; the marks below the axis are ops that are run again. Point at the picture.</p>\n%s\n<div id=\"hover\">&nbsp;</div>\n", t.svg(r, e))
	legend(&b, t)
	atPeak(&b, e)
	b.WriteString(`<h2>Values</h2>
<p><input id="find" type="search" placeholder="search name, layer, type, fate, reason" size="50" aria-label="search values"> <span id="found"></span></p>
<table id="values"><thead><tr><th>value</th><th>layer</th><th>type</th><th class="n">bytes</th><th>fate</th><th class="n">runs</th><th class="n">to recompute</th><th>why</th></tr></thead><tbody></tbody></table>
<button id="more" hidden>show all</button>
<h2>Schedule</h2>
<p><label><input id="only" type="checkbox"> only what is run again</label> <span id="steps"></span></p>
<table id="ops"><thead><tr><th class="n">position</th><th>op</th><th>source</th><th class="n">time</th><th class="n">in memory</th><th>run</th></tr></thead><tbody></tbody></table>
<button id="moreops" hidden>show all</button>
<noscript><p>The tables and the pointer need JavaScript; <code>reprise explain</code> prints them too.</p></noscript>
`)
	fmt.Fprintf(&b, "<script type=\"application/json\" id=\"data\">%s</script>\n<script>%s</script>\n</body></html>\n", data, script)
	_, err = io.WriteString(w, b.String())
	return err
}

// certificate is the table of what was promised and what is proven.
func certificate(b *strings.Builder, r compile.Report, e *compile.Explanation) {
	bytes := func(n int64) string { return fmt.Sprintf("%s <span class=\"dim\">%d</span>", compile.Bytes(n), n) }
	row := func(what, is string) { fmt.Fprintf(b, "<tr><th>%s</th><td>%s</td></tr>", what, is) }
	b.WriteString(`<div class="facts"><table id="memory">`)
	row("budget", bytes(r.BudgetBytes))
	row("arena, promised and allocated", bytes(e.Memory.ArenaBytes))
	row("in memory for the whole step", bytes(e.Memory.StepResidentBytes))
	row("most in use beside it", bytes(e.Memory.PeakBytes)+" at "+escape(position(e.Memory, e)))
	row("unused at the peak", bytes(e.Memory.UnusedBytes))
	row("keeping everything would take", bytes(r.SaveAllPeakBytes))
	if r.MinBudgetBytes > 0 {
		row("smallest found", bytes(r.MinBudgetBytes))
	}
	b.WriteString(`</table><table id="certificate">`)
	row("ops of the step", fmt.Sprintf("%d, of which %d are run again", r.Ops, r.Recomputed))
	row("expected time", fmt.Sprintf("%s: %s and %s again (%.2f %%)", compile.Time(r.CostNs), compile.Time(r.BaseCostNs), compile.Time(r.RecomputeNs), 100*r.Overhead))
	row("no plan of these kernels in these bytes takes less than", fmt.Sprintf("%s (%.2f %% over computing all once)", compile.Time(r.LowerBoundNs), 100*(r.Overhead-r.Gap)))
	row("gap", fmt.Sprintf("%.2f %%", 100*r.Gap))
	row("proof", escape(r.Proof))
	row("found by", escape(r.Solver))
	row("target", escape(r.Target))
	row("compiled from", "<code>"+escape(r.InputSHA256)+"</code>")
	b.WriteString("</table></div>\n")
}

func legend(b *strings.Builder, t *timeline) {
	b.WriteString(`<div id="legend"><span><i class="resident"></i>in memory for the whole step</span>`)
	for g, name := range t.groups {
		fmt.Fprintf(b, `<span><i style="background:%s"></i>%s</span>`, color(g, len(t.groups)), escape(name))
	}
	b.WriteString("</div>\n")
}

// maxAtPeak bounds the table of the peak; the rest is one row, so that its sum stays the arena.
const maxAtPeak = 60

// atPeak lists what is in memory at the peak. Its sum is the arena.
func atPeak(b *strings.Builder, e *compile.Explanation) {
	m := e.Memory
	var live []compile.StretchReport
	for _, s := range e.Stretches {
		if s.Start <= m.PeakPosition && m.PeakPosition <= s.End {
			live = append(live, s)
		}
	}
	slices.SortStableFunc(live, func(a, c compile.StretchReport) int { return int(min(1, max(-1, c.Bytes-a.Bytes))) })
	fmt.Fprintf(b, "<h2>In memory at the peak</h2>\n<p>At %s. Memory goes by the first value in it, over which another may be written by then.</p>\n<table id=\"atpeak\"><thead><tr><th>value</th><th>layer</th><th class=\"n\">bytes</th><th>fate</th><th>why</th></tr></thead><tbody>", escape(position(m, e)))
	row := func(name, layer string, bytes int64, fate, why string) {
		fmt.Fprintf(b, "<tr><td>%s</td><td>%s</td><td class=\"n\" data-bytes=\"%d\">%d</td><td>%s</td><td>%s</td></tr>\n", escape(name), escape(layer), bytes, bytes, fate, escape(why))
	}
	row("states, keys and inputs", "", m.StepResidentBytes, compile.FateResident, "in memory for the whole step")
	var rest int64
	for i, s := range live {
		if i >= maxAtPeak {
			rest += s.Bytes
			continue
		}
		if s.Value < 0 {
			op := e.Ops[s.Start]
			row("workspace of "+op.Op, op.Layer, s.Bytes, "workspace", "the op's own while it runs")
			continue
		}
		v := e.Values[s.Value]
		row(v.Name, v.Layer, s.Bytes, v.Fate, v.Reason)
	}
	if n := len(live) - maxAtPeak; n > 0 {
		row(fmt.Sprintf("%d more", n), "", rest, "", "smaller ones")
	}
	row("unused", "", m.UnusedBytes, "", "holes of the layout, or what only the initialisation needs")
	fmt.Fprintf(b, "</tbody><tfoot><tr><th>arena</th><th></th><th class=\"n\">%d</th><th></th><th></th></tr></tfoot></table>\n", m.ArenaBytes)
}
