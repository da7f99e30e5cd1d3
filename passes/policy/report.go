package policy

import (
	"fmt"
	"slices"
	"strings"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/ops"
	"reprise/passes/remat"
	"reprise/planner"
)

// Report says what became of a policy's lines.
type Report struct {
	Name     string        `json:"name"`
	Rules    []*RuleReport `json:"rules"`
	Warnings []string      `json:"warnings,omitempty"`

	reasons []string // by value of the problem
}

// RuleReport is about one line.
type RuleReport struct {
	File    string   `json:"file"`
	Line    int      `json:"line"`
	Text    string   `json:"text"`
	Matched int      `json:"matched"` // values that it names
	First   []string `json:"first,omitempty"`
	Decided int      `json:"decided"` // of those, the ones that no stronger line or pin decides about
	// Freed and Kept are bytes of the values decided about that would be kept for the backward part if nothing were
	// computed again: those that the plan does not keep, and those that it keeps. For a line that bounds bytes Kept is what the plan
	// keeps of all its values, and Allowed the bound.
	FreedBytes   int64    `json:"freed_bytes"`
	KeptBytes    int64    `json:"kept_bytes"`
	AllowedBytes *int64   `json:"allowed_bytes,omitempty"`
	Notes        []string `json:"notes,omitempty"`

	values []int
	bound  *bound         // of a line that bounds what is kept
	inside int            // values that a while, if or case makes
	held   map[string]int // reason: how many values it keeps from being recomputed
	holds  []string       // the reasons, in order
}

// bound is what may be kept of some values for the backward part, and what is.
type bound struct {
	values      []int
	limit, kept int64
	binds       bool // if nothing were computed again more would be kept
}

const maxFirst = 4

func (r *RuleReport) match(c *candidate) {
	r.Matched++
	if len(c.inner) > 0 {
		r.inside++
	}
	if len(r.First) < maxFirst {
		r.First = append(r.First, c.label())
	}
}

// budget: the line is a budget of a region.
func (r *RuleReport) budget() bool { return strings.HasPrefix(r.Text, "budget ") }

func (r *RuleReport) hold(c *candidate, why string) {
	if r.held == nil {
		r.held = map[string]int{}
	}
	if r.held[why] == 0 {
		r.holds = append(r.holds, why)
	}
	r.held[why]++
}

// Within is an error where a plan keeps more than a line allows, in the bytes that a finished report counts.
func (r *Report) Within() error {
	if r == nil {
		return nil
	}
	for _, rule := range r.Rules {
		if b := rule.bound; b != nil && b.kept > b.limit {
			return fmt.Errorf("%s:%d: %s: the plan keeps %d bytes of these values, %d are allowed", rule.File, rule.Line, rule.Text, b.kept, b.limit)
		}
	}
	return nil
}

// Bounded reports whether value v is one of those of which a line keeps only so many bytes, and the line leaves its fate open.
func (r *Report) Bounded(v int) bool {
	for _, rule := range r.Rules {
		if rule.bound != nil && rule.bound.binds && slices.Contains(rule.values, v) {
			return true
		}
	}
	return false
}

// Active reports whether the policy had a say: whether the program has a backward part.
func (r *Report) Active() bool { return r.Rules != nil }

// Reason is what the policy says of value v of the problem, "" where it says nothing.
func (r *Report) Reason(v int) string {
	if r == nil {
		return ""
	}
	return r.reasons[v]
}

// Says names the lines that decide about some value, "" if there are none.
func (r *Report) Says() string {
	if r == nil {
		return ""
	}
	var out []string
	for _, rule := range r.Rules {
		if rule.Decided > 0 {
			out = append(out, fmt.Sprintf("%s:%d (%s: %d values)", rule.File, rule.Line, rule.Text, rule.Decided))
		}
	}
	return strings.Join(out, ", ")
}

// Outcome is what a program makes of a problem's values.
type Outcome struct {
	// Kept are the bytes that are kept for the backward part, by value: of the value itself, or of row
	// statistics with which its readers compute it.
	Kept  []int64
	Again bool // something is computed again, as an op or by a reader, for the backward part
}

// OutcomeOf is what a plan makes of the values of its own problem.
func OutcomeOf(pr *remat.Problem, plan *planner.Plan) Outcome {
	out := Outcome{Kept: make([]int64, len(pr.Values))}
	for v, yes := range planner.KeptAcross(pr.Problem, plan.Order) {
		if yes {
			out.Kept[v] = pr.Problem.Values[v].Bytes
		}
	}
	runs := make([]int, len(pr.Ops))
	for _, i := range plan.Order {
		runs[i]++
		out.Again = out.Again || runs[i] > 1 && pr.Lowered[i] != nil
	}
	return out
}

// Finished is the report with what became of the values of pr, to which the policy was applied: bytes freed and kept by line, and, where
// a line that recomputes freed nothing, what keeps its values in memory.
func (r *Report) Finished(pr *remat.Problem, out Outcome) *Report {
	if len(pr.Problem.Gates) == 0 {
		return r
	}
	done := *r
	done.Rules = nil
	for _, rule := range r.Rules {
		c := *rule
		c.Notes = slices.Clone(c.Notes)
		done.Rules = append(done.Rules, &c)
	}
	done.Warnings, done.reasons = slices.Clone(r.Warnings), slices.Clone(r.reasons)
	done.finish(pr, out)
	return &done
}

func (r *Report) finish(pr *remat.Problem, out Outcome) {
	before := planner.KeptAcross(pr.Problem, planner.SaveAll(pr.Problem).Order)
	now := out.Kept
	read, under := pr.Backed(), pr.Under()
	for _, rule := range r.Rules {
		unread := 0
		var freed, kept int64
		for _, v := range rule.values {
			kept += now[v]
			switch n := pr.Problem.Values[v].Bytes; {
			case before[v]:
				freed += max(0, n-now[v])
			case now[v] == 0 && !read[v]:
				unread++
			}
		}
		rule.FreedBytes = freed
		rule.KeptBytes = kept
		if rule.bound != nil {
			b := *rule.bound
			b.kept = 0
			for _, v := range b.values {
				b.kept += now[v]
			}
			rule.bound, rule.KeptBytes = &b, b.kept
			for _, v := range rule.values {
				if before[v] && now[v] == 0 && b.binds && r.reasons[v] == "" && pr.Problem.Values[v].Bytes > b.limit-b.kept {
					r.reasons[v] = fmt.Sprintf("no room in %d bytes: policy %s:%d", b.limit, rule.File, rule.Line)
				}
			}
		}
		if freed > 0 {
			if n, who := instead(pr, rule.values, before, now, under); n > 0 {
				rule.Notes = append(rule.Notes, fmt.Sprintf("computing its values again reads %d bytes that would not be kept otherwise: %s", n, who))
			}
		}
		if why := rule.whole(); why != "" {
			rule.Notes = append(rule.Notes, why)
		}
		for _, why := range rule.holds {
			rule.Notes = append(rule.Notes, fmt.Sprintf("%d of its values stay in memory: %s", rule.held[why], why))
		}
		if n := rule.Matched - rule.Decided; n > 0 && len(rule.holds) == 0 && !rule.budget() && !strings.HasPrefix(rule.Text, "allow-recompute ") {
			rule.Notes = append(rule.Notes, fmt.Sprintf("stronger or later lines decide about %d of its values", n))
		}
		if strings.Contains(rule.Text, "recompute") && !strings.HasPrefix(rule.Text, "allow-recompute") && freed == 0 && rule.Decided > 0 {
			switch {
			case unread == rule.Decided:
				rule.Notes = append(rule.Notes, "it frees nothing: no backward op reads its values, so they are gone before the backward part anyway")
			case kept > 0:
				rule.Notes = append(rule.Notes, fmt.Sprintf("it frees nothing: the plan keeps its %d bytes, which fit", kept))
			default:
				rule.Notes = append(rule.Notes, "it frees nothing: its values are not kept for the backward part in the first place")
			}
		}
	}
	if !out.Again {
		r.Warnings = append(r.Warnings, "a policy was given, and nothing is computed again")
	}
}

// instead is what is kept for backward only because computing the given values again reads it: how many
// bytes, and some of the values.
func instead(pr *remat.Problem, values []int, before []bool, now []int64, under []int) (int64, string) {
	producer := map[int]int{}
	for i := range pr.Ops {
		for _, v := range pr.Problem.Ops[i].Outputs {
			producer[v] = i
		}
	}
	var sum int64
	var who []string
	seen := map[int]bool{}
	for _, v := range values {
		if now[v] == pr.Problem.Values[v].Bytes || !before[v] {
			continue
		}
		for _, in := range pr.Problem.Ops[producer[v]].Inputs {
			in = under[in]
			if i, made := producer[in]; made && now[in] > 0 && !before[in] && !seen[in] {
				seen[in] = true
				sum += pr.Problem.Values[in].Bytes
				name := pr.Values[in].Name
				if n := ValueName(pr.Values[in]); n != "" {
					name = n
				}
				who = append(who, fmt.Sprintf("%s %%%s", pr.Ops[i].Loc.Layer, name))
			}
		}
	}
	return sum, some(who, 3)
}

// String is the report on the lines for a person, without the warnings.
func (r *Report) String() string {
	var b strings.Builder
	for _, rule := range r.Rules {
		fmt.Fprintf(&b, "  %s:%d: %s: %d matched", rule.File, rule.Line, rule.Text, rule.Matched)
		if rule.FreedBytes > 0 {
			fmt.Fprintf(&b, ", %d bytes not kept for backward", rule.FreedBytes)
		}
		if rule.AllowedBytes != nil {
			fmt.Fprintf(&b, ", %d of %d bytes kept", rule.KeptBytes, *rule.AllowedBytes)
		} else if rule.KeptBytes > 0 {
			fmt.Fprintf(&b, ", %d bytes kept", rule.KeptBytes)
		}
		b.WriteByte('\n')
		if len(rule.First) > 0 {
			fmt.Fprintf(&b, "    %s", strings.Join(rule.First, ", "))
			if rule.Matched > len(rule.First) {
				b.WriteString(", …")
			}
			b.WriteByte('\n')
		}
		for _, n := range rule.Notes {
			fmt.Fprintf(&b, "    note: %s\n", n)
		}
	}
	return b.String()
}

// nothing explains why a rule matches no value.
func (x *context) nothing(r *Rule) *diag.Error {
	if e := x.hidden(r); e != nil {
		return e
	}
	type key struct {
		what, word string
		one        Rule
	}
	var keys []key
	if r.Layer != "" {
		keys = append(keys, key{"layer", r.Layer, Rule{Layer: r.Layer}})
	}
	if r.Every > 0 {
		keys = append(keys, key{"every", fmt.Sprint(r.Every), Rule{Layer: r.Layer, Every: r.Every, Offset: r.Offset}})
	}
	if r.Value != "" {
		keys = append(keys, key{"value", r.Value, Rule{Value: r.Value}})
	}
	if r.Op != "" {
		keys = append(keys, key{"op", r.Op, Rule{Op: r.Op}})
	}
	if r.MinBytes > 0 {
		keys = append(keys, key{"min_bytes", fmt.Sprint(r.MinBytes), Rule{MinBytes: r.MinBytes}})
	}
	var counts []string
	for _, k := range keys {
		n := 0
		for _, c := range x.cands {
			if k.one.matches(c) {
				n++
			}
		}
		if n == 0 {
			e := bad(r.Where, "rule %q matches nothing: no %s %q", r.Text, k.what, k.word)
			switch k.what {
			case "min_bytes":
				var most int64
				for _, c := range x.cands {
					most = max(most, c.v.Type.Bytes())
				}
				e.Message = fmt.Sprintf("rule %q matches nothing: no value has %s bytes", r.Text, k.word)
				e.Hint = fmt.Sprintf("the largest value of the forward part has %d bytes", most)
			case "every":
				e.Message = fmt.Sprintf("rule %q matches nothing: no list of layers for every=%s", r.Text, k.word)
				e.Hint = "positions count in a list below what layer= names; " + x.regions()
			default:
				e.Hint = x.hint(k.what, k.word)
			}
			return e
		}
		counts = append(counts, fmt.Sprintf("%s=%s matches %d", k.what, k.word, n))
	}
	return bad(r.Where, "rule %q matches nothing", r.Text).WithHint("no value has all of it: %s", strings.Join(counts, ", "))
}

// hint names near misses of a layer pattern, a value's name or a kind of op.
func (x *context) hint(what, word string) string {
	pr := x.problem
	var known []string
	switch what {
	case "layer":
		if list, n, ok := element("", strings.TrimRight(word, ".*")); ok {
			if have := x.positions[list]; len(have) > 0 && !slices.Contains(have, n) {
				return fmt.Sprintf("%s has %d elements, %d to %d", list, len(have), have[0], have[len(have)-1])
			}
		}
		known = x.patterns()
	case "value":
		for _, c := range x.cands {
			if c.name != "" {
				known = append(known, strings.Split(c.name, ",")...)
			}
		}
		for _, v := range pr.Func.Body.Params {
			if glob(word, v.Name) || glob(word, v.Attrs.Str("name")) {
				article := "a"
				if v.Role() == ir.RoleInput || v.Role() == ir.RoleOpt {
					article = "an"
				}
				return fmt.Sprintf("%s is %s %s: it is in memory from start to end", v.Name, article, v.Role())
			}
		}
		if len(known) == 0 {
			return "the model names no values: nn.Name gives a value a name"
		}
	case "op":
		if std := standard(word); std != "" {
			return fmt.Sprintf("did you mean %s? That is what %s is here", std, word)
		}
		for _, c := range x.cands {
			known = append(known, c.kinds...)
		}
		if ops.Table().Lookup(word) != nil {
			for i, op := range pr.Ops {
				if !pr.Forward[i] && slices.ContainsFunc(op.Results, func(v *ir.Value) bool {
					return slices.ContainsFunc(computing(op, v.Index), func(o *ir.Op) bool { return o.Name() == word })
				}) {
					return fmt.Sprintf("%s is only in the backward part, which keeps nothing", word)
				}
			}
			slices.Sort(known)
			return fmt.Sprintf("there is such an op, but the model's forward part has none; it has %s", some(slices.Compact(known), 8))
		}
	case "module":
		var have []string
		for _, m := range Modules() {
			if slices.ContainsFunc(x.cands, func(c *candidate) bool { return c.region != "" && m.has(c) }) {
				have = append(have, m.Name)
			}
		}
		return "modules that the model has: " + strings.Join(have, ", ")
	}
	if near := nearest(word, known, 3); len(near) > 0 {
		return "did you mean " + strings.Join(near, " or ") + "?"
	}
	slices.Sort(known)
	return "there are " + some(slices.Compact(known), 8)
}

func some(list []string, n int) string {
	if len(list) > n {
		return strings.Join(list[:n], ", ") + ", …"
	}
	return strings.Join(list, ", ")
}

// patterns are layer paths, with * in the place of indices, and in short forms.
func (x *context) patterns() []string {
	var out []string
	add := func(s string) {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	for _, c := range x.cands {
		parts := strings.Split(c.layer, ".")
		star := -1
		for i := range parts {
			if isIndex(parts[i]) {
				parts[i] = "*"
				if star < 0 {
					star = i
				}
			}
		}
		for i := range parts {
			add(strings.Join(parts[:i+1], "."))
			if star >= 0 && i > star+1 {
				add(strings.Join(parts[:star+1], ".") + "." + strings.Join(parts[i:], "."))
			}
		}
		add(c.layer)
	}
	return out
}

// regions says which lists of layers the model has.
func (x *context) regions() string {
	if len(x.positions) == 0 {
		return "the model has no list of layers (layers.0, layers.1, …)"
	}
	var lists []string
	for list := range x.positions {
		lists = append(lists, list)
	}
	slices.Sort(lists)
	for i, list := range lists {
		lists[i] = fmt.Sprintf("%s (%d)", list, len(x.positions[list]))
	}
	return "lists of layers: " + some(lists, 6)
}

// standard is our name of an op that has other names elsewhere, "" where we know none.
func standard(word string) string {
	w := strings.ToLower(word)
	for _, prefix := range []string{"torch.ops.", "aten.", "stablehlo.", "lax.", "prims."} {
		w = strings.TrimPrefix(w, prefix)
	}
	w = strings.TrimSuffix(w, ".default")
	switch w {
	case "mm", "matmul", "dot", "dot_general", "linear", "addmm", "bmm", "gemm", "einsum", "matmull":
		return "contract"
	case "topk":
		return "top_k"
	case "sdpa", "scaled_dot_product_attention", "flash_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention":
		return "attention"
	case "convolution", "conv2d", "conv_general_dilated":
		return "conv"
	case "layernorm", "native_layer_norm":
		return "layer_norm"
	case "rmsnorm":
		return "rms_norm"
	case "embedding":
		return "take"
	}
	return ""
}
