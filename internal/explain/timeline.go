package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"reprise/internal/compile"
)

const (
	maxGroups  = 40   // layers that are told apart in the picture
	maxColumns = 1200 // columns of the picture; a column of several positions shows the one with most memory
)

// timeline is memory over the step: for each column what each group of layers has in use.
type timeline struct {
	groups  []string  // bottom first, in the order of their first bytes
	columns []int     // the position that a column shows
	bytes   [][]int64 // by group, by column
}

// newTimeline sums up the stretches of a step. The sum of a column over all groups is the number of bytes in use
// at its position, beside the residents.
func newTimeline(e *compile.Explanation) *timeline {
	n := len(e.Ops) + 1
	layer := make([]string, len(e.Stretches))
	for i, s := range e.Stretches {
		layer[i] = e.Ops[s.Start].Layer
	}
	group := grouping(layer, e.Stretches)
	t := &timeline{}
	index := map[string]int{}
	total := make([]int64, n)
	var delta [][]int64
	order := make([]int, len(e.Stretches))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(e.Stretches[a].Start, e.Stretches[b].Start) })
	for _, i := range order {
		s := e.Stretches[i]
		name := group(layer[i])
		g, ok := index[name]
		if !ok {
			g = len(t.groups)
			index[name] = g
			t.groups = append(t.groups, name)
			delta = append(delta, make([]int64, n+1))
		}
		delta[g][s.Start] += s.Bytes
		delta[g][min(s.End, n-1)+1] -= s.Bytes
	}
	for _, d := range delta {
		for pos := range n {
			if pos > 0 {
				d[pos] += d[pos-1]
			}
			total[pos] += d[pos]
		}
	}
	width := (n + maxColumns - 1) / maxColumns
	for from := 0; from < n; from += width {
		best := from
		for pos := from; pos < min(n, from+width); pos++ {
			if total[pos] > total[best] {
				best = pos
			}
		}
		t.columns = append(t.columns, best)
	}
	t.bytes = make([][]int64, len(t.groups))
	for g, d := range delta {
		for _, pos := range t.columns {
			t.bytes[g] = append(t.bytes[g], d[pos])
		}
	}
	return t
}

// grouping says under which name a layer is drawn: its path, cut to the depth at which there are at most maxGroups;
// where even that is too many, the smaller ones together.
func grouping(layers []string, stretches []compile.StretchReport) func(string) string {
	cut := func(layer string, depth int) string {
		parts := strings.Split(layer, ".")
		return strings.Join(parts[:min(depth, len(parts))], ".")
	}
	deepest := 1
	for _, l := range layers {
		deepest = max(deepest, strings.Count(l, ".")+1)
	}
	for depth := deepest; depth > 0; depth-- {
		weight := map[string]int64{}
		for i, l := range layers {
			weight[cut(l, depth)] += stretches[i].Bytes * int64(stretches[i].End-stretches[i].Start+1)
		}
		if len(weight) <= maxGroups {
			return func(l string) string { return cut(l, depth) }
		}
		if depth > 1 {
			continue
		}
		names := make([]string, 0, len(weight))
		for name := range weight {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int {
			return cmp.Or(cmp.Compare(weight[b], weight[a]), cmp.Compare(a, b))
		})
		kept := map[string]bool{}
		for _, name := range names[:maxGroups-1] {
			kept[name] = true
		}
		return func(l string) string {
			if kept[cut(l, 1)] {
				return cut(l, 1)
			}
			return "other layers"
		}
	}
	return func(l string) string { return l }
}

// picture is the size of the drawing, in its own units.
const (
	picWidth, picHeight                  = 1200, 460
	picLeft, picRight, picTop, picBottom = 86, 14, 30, 46
	plotWidth, plotHeight                = picWidth - picLeft - picRight, picHeight - picTop - picBottom
	ticks                                = 5
)

// svg draws the timeline: the residents at the bottom, groups of layers on them, the peak, the budget, and below
// the axis a mark for every op that is run again.
func (t *timeline) svg(r compile.Report, e *compile.Explanation) string {
	m := e.Memory
	top := float64(max(m.ArenaBytes, r.BudgetBytes)) * 1.04
	if r.BudgetBytes > 2*m.ArenaBytes { // a budget that is far away would flatten everything
		top = float64(m.ArenaBytes) * 1.15
	}
	// Where most is resident, the axis starts within it, so that what moves can be seen.
	base := 0.0
	if resident := float64(m.StepResidentBytes); resident > top/2 {
		base = resident - (top-resident)*0.2
	}
	y := func(b int64) float64 { return picTop + plotHeight*(1-max(0, float64(b)-base)/(top-base)) }
	x := func(column int) float64 { return picLeft + plotWidth*float64(column)/float64(len(t.columns)) }
	at := func(pos int) float64 { return picLeft + plotWidth*float64(pos)/float64(len(e.Ops)+1) }
	var s strings.Builder
	fmt.Fprintf(&s, `<svg id="timeline" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="memory by layer over the step">`, picWidth, picHeight)
	for k := range ticks + 1 {
		b := int64(base + (top-base)/1.04*float64(k)/ticks)
		fmt.Fprintf(&s, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text class="axis" x="%d" y="%.1f" text-anchor="end">%s</text>`,
			picLeft, picLeft+plotWidth, y(b), y(b), picLeft-6, y(b)+4, compile.Bytes(b))
		pos := len(e.Ops) * k / ticks
		anchor := "middle"
		if k == ticks {
			anchor = "end"
		}
		fmt.Fprintf(&s, `<text class="axis" x="%.1f" y="%d" text-anchor="%s">op %d</text>`, at(pos), picHeight-12, anchor, pos)
	}
	fmt.Fprintf(&s, `<rect class="resident" x="%d" y="%.1f" width="%d" height="%.1f" data-group="resident" data-bytes="%d"><title>in memory for the whole step: %s, %d bytes</title></rect>`,
		picLeft, y(m.StepResidentBytes), plotWidth, y(0)-y(m.StepResidentBytes), m.StepResidentBytes, compile.Bytes(m.StepResidentBytes), m.StepResidentBytes)
	floor := make([]int64, len(t.columns))
	for i := range floor {
		floor[i] = m.StepResidentBytes
	}
	for g, name := range t.groups {
		fmt.Fprintf(&s, `<path class="layer" fill="%s" data-group="%s" d="`, color(g, len(t.groups)), escape(name))
		t.area(&s, floor, t.bytes[g], x, y)
		fmt.Fprintf(&s, `"><title>%s</title></path>`, escape(name))
		for i, b := range t.bytes[g] {
			floor[i] += b
		}
	}
	for pos, op := range e.Ops {
		if op.Clone > 0 && op.Ns > 0 {
			fmt.Fprintf(&s, `<rect class="again" x="%.2f" y="%d" width="%.2f" height="8"/>`, at(pos), picTop+plotHeight+3, max(0.8, plotWidth/float64(len(e.Ops)+1)))
		}
	}
	peak := at(m.PeakPosition) + plotWidth/float64(len(e.Ops)+1)/2
	py := y(m.StepResidentBytes + m.PeakBytes)
	anchor, dx := "start", 8.0
	if peak > picLeft+plotWidth/2 {
		anchor, dx = "end", -8
	}
	fmt.Fprintf(&s, `<line class="peak" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/><circle class="peak" cx="%.1f" cy="%.1f" r="4"/><text class="peak" x="%.1f" y="%d" text-anchor="%s">peak %s at %s</text>`,
		peak, peak, picTop-6, picTop+plotHeight, peak, py, peak+dx, picTop-10, anchor, compile.Bytes(m.StepResidentBytes+m.PeakBytes), escape(position(m, e)))
	if b := r.BudgetBytes; float64(b) <= top {
		fmt.Fprintf(&s, `<line id="budget" class="budget" x1="%d" x2="%d" y1="%.1f" y2="%.1f" data-bytes="%d"/><text class="budget" x="%d" y="%.1f" text-anchor="end">budget %s</text>`,
			picLeft, picLeft+plotWidth, y(b), y(b), b, picLeft+plotWidth-4, y(b)-4, compile.Bytes(b))
	}
	fmt.Fprintf(&s, `<line id="cursor" x1="-9" x2="-9" y1="%d" y2="%d"/></svg>`, picTop, picTop+plotHeight)
	return s.String()
}

// area writes the outline of one group: its upper edge from left to right, then its lower edge back.
func (t *timeline) area(s *strings.Builder, floor, bytes []int64, x func(int) float64, y func(int64) float64) {
	n := len(bytes)
	for from := 0; from < n; {
		if bytes[from] == 0 {
			from++
			continue
		}
		to := from
		for to < n && bytes[to] > 0 {
			to++
		}
		fmt.Fprintf(s, "M%.1f %.1f", x(from), y(floor[from]+bytes[from]))
		for i := from; i < to; i++ {
			if i > from && floor[i]+bytes[i] != floor[i-1]+bytes[i-1] {
				fmt.Fprintf(s, "V%.1f", y(floor[i]+bytes[i]))
			}
			if i+1 == to || floor[i+1]+bytes[i+1] != floor[i]+bytes[i] {
				fmt.Fprintf(s, "H%.1f", x(i+1))
			}
		}
		for i := to - 1; i >= from; i-- {
			if i == to-1 || floor[i] != floor[i+1] {
				fmt.Fprintf(s, "V%.1f", y(floor[i]))
			}
			if i == from || floor[i-1] != floor[i] {
				fmt.Fprintf(s, "H%.1f", x(i))
			}
		}
		s.WriteByte('Z')
		from = to
	}
}

// position names the peak's place.
func position(m compile.Memory, e *compile.Explanation) string {
	if m.PeakPosition >= len(e.Ops) {
		return "the end of the step"
	}
	return fmt.Sprintf("op %d, %s", m.PeakPosition, m.PeakOp)
}

// color gives n groups hues around the circle, neighbours apart in lightness.
func color(g, n int) string {
	return fmt.Sprintf("hsl(%d %d%% %d%%)", 360*g/max(n, 1), 50+10*(g%2), 52+8*(g%3))
}
