package explain_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/internal/explain"
)

// page is a page taken apart.
type page struct {
	text string
	data struct {
		Columns  []int
		Groups   []string
		Stack    [][]int64
		Resident int64
		Ops      [][]any
		Values   [][]any
	}
	shapes []xml.StartElement // of the picture
}

var (
	svgPart  = regexp.MustCompile(`(?s)<svg id="timeline".*?</svg>`)
	dataPart = regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`)
)

func write(t *testing.T, r compile.Report, e *compile.Explanation) *page {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, explain.WriteHTML(&buf, r, e))
	p := &page{text: buf.String()}
	data := dataPart.FindStringSubmatch(p.text)
	require.NotNil(t, data)
	require.NoError(t, json.Unmarshal([]byte(data[1]), &p.data))
	d := xml.NewDecoder(strings.NewReader(svgPart.FindString(p.text)))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if s, ok := token.(xml.StartElement); ok {
			p.shapes = append(p.shapes, s.Copy())
		}
	}
	require.NotEmpty(t, p.shapes)
	return p
}

func attr(s xml.StartElement, name string) string {
	for _, a := range s.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (p *page) find(name, class string) (out []xml.StartElement) {
	for _, s := range p.shapes {
		if s.Name.Local == name && attr(s, "class") == class {
			out = append(out, s)
		}
	}
	return out
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	x, err := strconv.ParseFloat(s, 64)
	require.NoError(t, err)
	return x
}

// top is the highest point of everything drawn between two places on the axis.
func (p *page) top(t *testing.T) float64 {
	best := 1e9
	for _, s := range p.find("path", "layer") {
		for _, m := range regexp.MustCompile(`[VM][\d.]+ ?([\d.]+)?`).FindAllString(attr(s, "d"), -1) {
			if f := strings.Fields(m[1:]); m[0] == 'M' {
				best = min(best, number(t, f[1]))
			} else {
				best = min(best, number(t, f[0]))
			}
		}
	}
	return best
}

// TestPage draws real plans: what the picture and the tables hold is what the plan says, in bytes.
func TestPage(t *testing.T) {
	for _, c := range []struct {
		spec   string
		budget compile.Budget
	}{
		{"builtin:mlp,in=8,hidden=16,layers=3,batch=4", compile.Budget{Min: true}},
		{"builtin:gpt,layers=2,d=16,heads=2,seq=8,batch=2,vocab=20", compile.Budget{Percent: 95}},
		{"builtin:moe,layers=1,d=16,heads=2,seq=8,batch=2,experts=3,vocab=11", compile.Budget{}},
	} {
		t.Run(c.spec, func(t *testing.T) {
			m, err := frontend.Load(c.spec, frontend.Options{Train: true})
			require.NoError(t, err)
			prog, err := compile.Plan(context.Background(), m, compile.Options{Budget: c.budget, PlanSteps: 500})
			require.NoError(t, err)
			p := write(t, prog.Report, prog.Explanation)
			// The stack at the peak and the residents are the live bytes; no column has more.
			best := int64(0)
			for col, pos := range p.data.Columns {
				sum := p.data.Resident
				for _, g := range p.data.Stack {
					sum += g[col]
				}
				best = max(best, sum)
				if pos == prog.Memory.PeakPosition {
					assert.Equal(t, prog.Report.LiveBytes, sum)
				}
			}
			assert.Equal(t, prog.Report.LiveBytes, best)
			// The table of the peak sums up to the arena.
			var sum int64
			for _, m := range regexp.MustCompile(`<td class="n" data-bytes="(-?\d+)">`).FindAllStringSubmatch(p.text, -1) {
				n, err := strconv.ParseInt(m[1], 10, 64)
				require.NoError(t, err)
				sum += n
			}
			assert.Equal(t, prog.Report.ArenaBytes, sum)
			assert.Contains(t, p.text, fmt.Sprintf(`<th class="n">%d</th>`, prog.Report.ArenaBytes))
			// The picture: residents, every group, the peak at the highest point, the budget at or above it.
			assert.Len(t, p.find("path", "layer"), len(p.data.Groups))
			assert.Equal(t, fmt.Sprint(prog.Memory.StepResidentBytes), attr(p.find("rect", "resident")[0], "data-bytes"))
			peak := p.find("circle", "peak")
			require.Len(t, peak, 1)
			assert.InDelta(t, p.top(t), number(t, attr(peak[0], "cy")), 0.11)
			if line := p.find("line", "budget"); assert.Len(t, line, 1) {
				assert.Equal(t, fmt.Sprint(prog.Report.BudgetBytes), attr(line[0], "data-bytes"))
				assert.LessOrEqual(t, number(t, attr(line[0], "y1")), p.top(t)+0.11)
			}
			again := 0
			for _, o := range p.data.Ops {
				if o[5].(float64) > 0 && o[3].(float64) > 0 {
					again++
				}
			}
			assert.Equal(t, prog.Report.Recomputed, again)
			assert.Len(t, p.find("rect", "again"), again)
			require.Len(t, p.data.Values, len(prog.Values))
			assert.Contains(t, p.text, prog.Report.Proof)
			selfContained(t, p.text)
		})
	}
}

// selfContained: the page refers to nothing outside itself.
func selfContained(t *testing.T, text string) {
	t.Helper()
	text = strings.ReplaceAll(text, `xmlns="http://www.w3.org/2000/svg"`, "")
	for _, bad := range []string{"http:", "https:", "src=", "href=", "@import", "url(", "fetch(", "import("} {
		assert.NotContains(t, text, bad)
	}
}

// large is a made-up step of many layers and values, some with hostile names.
func large(layers, perLayer int) (compile.Report, *compile.Explanation) {
	e := &compile.Explanation{Format: compile.ExplanationFormat}
	n := layers * perLayer
	live := make([]int64, n+1)
	for i := range n {
		layer := fmt.Sprintf("stack.%d.part%d", i/perLayer, i%3)
		name := fmt.Sprintf(`%s:</script><b a="x">&%d`, layer, i)
		e.Ops = append(e.Ops, compile.OpReport{ID: i, Op: name, Layer: layer, Ns: int64(i + 1), Clone: i % 7 / 6})
		end := min(n, i+i%50)
		e.Values = append(e.Values, compile.ValueReport{Name: name, Layer: layer, Op: name, Type: "f32[4]", Bytes: int64(64 * (1 + i%9)), Fate: compile.FateSaved, Runs: 1, Reason: "<i>because</i>"})
		e.Stretches = append(e.Stretches, compile.StretchReport{Value: i, Start: i, End: end, Bytes: int64(64 * (1 + i%9))})
		for pos := i; pos <= end; pos++ {
			live[pos] += int64(64 * (1 + i%9))
		}
	}
	for i := range n {
		e.Ops[i].Bytes = live[i]
	}
	for pos, b := range live {
		if b > e.Memory.PeakBytes {
			e.Memory.PeakBytes, e.Memory.PeakPosition = b, pos
		}
	}
	e.Memory.StepResidentBytes = 4096
	e.Memory.UnusedBytes = 640
	e.Memory.ArenaBytes = 4096 + 640 + e.Memory.PeakBytes
	return compile.Report{Model: "large<", ArenaBytes: e.Memory.ArenaBytes, BudgetBytes: e.Memory.ArenaBytes, LiveBytes: 4096 + e.Memory.PeakBytes}, e
}

// TestLargePage: thousands of values and hundreds of layers stay one page of moderate size, whose sums are
// still exact, and no name ends an element.
func TestLargePage(t *testing.T) {
	r, e := large(300, 20)
	p := write(t, r, e)
	assert.LessOrEqual(t, len(p.data.Groups), 40)
	assert.LessOrEqual(t, len(p.data.Columns), 1200)
	assert.Less(t, len(p.text), 4<<20)
	assert.Len(t, p.data.Values, 6000)
	best := int64(0)
	for col, pos := range p.data.Columns {
		sum := int64(0)
		for _, g := range p.data.Stack {
			sum += g[col]
		}
		if pos < len(e.Ops) {
			assert.Equal(t, e.Ops[pos].Bytes, sum)
		}
		best = max(best, sum)
	}
	assert.Equal(t, e.Memory.PeakBytes, best, "the peak's column is drawn")
	assert.NotContains(t, p.text, "</script><b")
	assert.NotContains(t, p.text, "<i>because")
	assert.Equal(t, 2, strings.Count(p.text, "</script>"))
	selfContained(t, p.text)
}

// TestLayersAreGrouped: layers are cut to the depth that keeps the picture readable.
func TestLayersAreGrouped(t *testing.T) {
	r, e := large(12, 20) // 36 layers: all
	assert.Len(t, write(t, r, e).data.Groups, 36)
	r, e = large(30, 20) // 90 layers: by block
	groups := write(t, r, e).data.Groups
	assert.Len(t, groups, 30)
	assert.Equal(t, "stack.0", groups[0])
	for i := range e.Ops { // 600 names without a path: the largest, and the rest together
		e.Ops[i].Layer = fmt.Sprintf("n%d", i)
	}
	groups = write(t, r, e).data.Groups
	assert.Len(t, groups, 40)
	assert.Contains(t, groups, "other layers")
}

// TestEmptyStep: a step without ops has a page.
func TestEmptyStep(t *testing.T) {
	p := write(t, compile.Report{Model: "m", ArenaBytes: 64, BudgetBytes: 64}, &compile.Explanation{Memory: compile.Memory{StepResidentBytes: 64, ArenaBytes: 64, PeakOp: "end of the step"}})
	assert.Contains(t, p.text, "the end of the step")
}
