package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// verdict is what a named policy says of a value.
type verdict uint8

const (
	silent          verdict = iota // nothing: it is kept, or the planner decides
	mustSave                       // kept, whatever the budget
	mustRecompute                  // not kept
	preferRecompute                // not kept unless there is room
	mustOffload
)

// base is a named policy with its parameters. decide gives its verdict on a value that no rule names.
type base struct {
	decide func(c *candidate) verdict
	needs  []need  // words of the parameters, each of which must be in the model
	empty  bool    // it may have nothing to say about any value
	share  float64 // memory_budget's parameter; negative: none
}

// need is a word of a named policy's parameters.
type need struct {
	what string // "value", "op" or "module"
	word string
	has  func(c *candidate) bool
}

func decides(f func(c *candidate) verdict, needs ...need) base {
	return base{decide: f, needs: needs, share: -1}
}

func needNames(names []string) []need {
	var out []need
	for _, n := range names {
		out = append(out, need{"value", n, func(c *candidate) bool { return c.isNamed(n) }})
	}
	return out
}

func needOps(kinds []string) []need {
	var out []need
	for _, k := range kinds {
		out = append(out, need{"op", k, func(c *candidate) bool { return c.isKind(k) }})
	}
	return out
}

// Named describes a named policy.
type Named struct {
	Name    string
	Args    string // form of what follows the colon, "" where nothing does
	From    string // where people know it from
	Meaning string
	make    func(args string) (base, error)
}

// Usage is the name with the form of its parameters.
func (n *Named) Usage() string {
	if n.Args == "" {
		return n.Name
	}
	return n.Name + ":" + n.Args
}

// lookup finds a named policy, nil where there is none.
func lookup(word string) *Named {
	for _, n := range All() {
		if n.Name == word {
			return &n
		}
	}
	return nil
}

func names() []string {
	var out []string
	for _, n := range All() {
		out = append(out, n.Name)
	}
	return out
}

func resolve(name string) (base, error) {
	word, args, _ := strings.Cut(name, ":")
	n := lookup(word)
	if n == nil {
		return base{}, fmt.Errorf("no named policy %q", word)
	}
	return n.make(args)
}

// All lists the named policies. Regions, borders and positions are those of docs/policies.md.
func All() []Named {
	plain := func(f func(c *candidate) verdict) func(string) (base, error) {
		return func(args string) (base, error) {
			if args != "" {
				return base{}, fmt.Errorf("it takes no parameters, %q was given", args)
			}
			return decides(f), nil
		}
	}
	none := func(args string) (base, error) {
		b, err := plain(func(*candidate) verdict { return silent })(args)
		b.empty = true
		return b, err
	}
	ofNames := func(keep func(c *candidate, names []string) verdict) func(string) (base, error) {
		return func(args string) (base, error) {
			list, err := splitList(args, "names")
			if err != nil {
				return base{}, err
			}
			return decides(func(c *candidate) verdict { return keep(c, list) }, needNames(list)...), nil
		}
	}
	ofOps := func(listed, other verdict) func(string) (base, error) {
		return func(args string) (base, error) {
			list, err := splitList(args, "kinds of op")
			if err != nil {
				return base{}, err
			}
			return decides(func(c *candidate) verdict {
				switch {
				case c.isKind(list...):
					return listed
				case other != silent && !c.inside():
					return silent
				}
				return other
			}, needOps(list)...), nil
		}
	}
	return []Named{
		{"none", "", "torchtitan", "no rule: everything is kept, or the planner decides within the budget", none},
		{"everything_saveable", "", "JAX", "as none", none},
		{"nothing_saveable", "", "JAX", "inside regions nothing is kept but their inputs", plain(full)},
		{"full", "", "torchtitan", "inside regions nothing is kept but their inputs", plain(full)},
		{"dots_saveable", "", "JAX", "inside regions only results of contractions, convolutions and attention are kept", plain(saveable(dots))},
		{"checkpoint_dots", "", "JAX", "as dots_saveable", plain(saveable(dots))},
		{"dots_with_no_batch_dims_saveable", "", "JAX", "inside regions only results of contractions without batch dimensions are kept", plain(saveable(plainDots))},
		{"checkpoint_dots_with_no_batch_dims", "", "JAX", "as dots_with_no_batch_dims_saveable", plain(saveable(plainDots))},
		{"save_only_these_names", "NAME,NAME…", "JAX", "inside regions only the named values that are listed are kept",
			ofNames(func(c *candidate, names []string) verdict { return unless(c, c.isNamed(names...)) })},
		{"save_any_names_but_these", "NAME,NAME…", "JAX", "inside regions only named values are kept, without those that are listed",
			ofNames(func(c *candidate, names []string) verdict {
				return unless(c, c.name != "" && !c.isNamed(names...))
			})},
		{"save_anything_except_these_names", "NAME,NAME…", "JAX", "everything is kept, named or not, but the named values that are listed",
			ofNames(func(c *candidate, names []string) verdict {
				if c.isNamed(names...) {
					return mustRecompute
				}
				return silent
			})},
		{"save_and_offload_only_these_names", "NAME,…;NAME,…", "JAX", "inside regions the named values of the first list are kept, those of the second moved to the host, nothing else", saveAndOffload},
		{"offload_dot_with_no_batch_dims", "", "JAX", "inside regions results of contractions without batch dimensions are moved to the host, nothing else is kept",
			plain(func(c *candidate) verdict {
				if c.inside() && plainDots(c) {
					return mustOffload
				}
				return full(c)
			})},
		{"save_from_both_policies", "POLICY,POLICY", "JAX", "kept is what either policy keeps", both},
		{"selective", "op|op=KIND,KIND…|K|MODULE,MODULE…", "torchtitan, Megatron", "op: contractions by turns (the first is kept, the second not, …) and attention are kept; op=: the listed kinds are; " +
			"K: every K-th layer is computed again, the others kept; modules (default core_attn): these are computed again in every layer", selective},
		{"memory_budget", "FRACTION", "PyTorch compile", "of the bytes that would be kept, at most this share is: 0 keeps the inputs of the step and what is pinned, 1 everything", memoryBudget},
		{"must_save", "KIND,KIND…", "PyTorch SAC", "inside regions results of these ops are kept whatever the budget, others computed again unless there is room", ofOps(mustSave, preferRecompute)},
		{"prefer_save", "KIND,KIND…", "PyTorch SAC", "inside regions results of these ops are kept if there is room, others computed again unless there is more", ofOps(silent, preferRecompute)},
		{"must_recompute", "KIND,KIND…", "PyTorch SAC", "results of these ops are computed again, others kept", ofOps(mustRecompute, silent)},
		{"prefer_recompute", "KIND,KIND…", "PyTorch SAC", "results of these ops are computed again unless there is room, others kept", ofOps(preferRecompute, silent)},
		{"uniform", "N", "Megatron", "the layers of a list are cut into runs of N; of each only its inputs are kept", uniform},
		{"block", "N", "Megatron", "of each of the first N layers of a list only the inputs are kept, of the others everything", block},
		{"every", "K", "Hugging Face every_n_layers", "layers at positions 0, K, 2K, … of their list are computed again, the others kept", every},
	}
}

// full takes all but what other regions read (a region's inputs) and what lies outside of regions.
func full(c *candidate) verdict {
	if c.inside() {
		return mustRecompute
	}
	return silent
}

func unless(c *candidate, keep bool) verdict {
	if keep {
		return silent
	}
	return full(c)
}

func saveable(keep func(c *candidate) bool) func(c *candidate) verdict {
	return func(c *candidate) verdict { return unless(c, keep(c)) }
}

func dots(c *candidate) bool { return c.isKind("contract", "grouped_contract", "conv", "attention") }

func plainDots(c *candidate) bool { return c.plainDot }

func splitList(args, what string) ([]string, error) {
	list := strings.Split(args, ",")
	for i := range list {
		list[i] = strings.TrimPrefix(strings.TrimSpace(list[i]), "%")
		if list[i] == "" {
			return nil, fmt.Errorf("it takes %s, separated by commas", what)
		}
	}
	return list, nil
}

func count(args string) (int, error) {
	n, err := strconv.Atoi(args)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("it takes a whole number of layers, at least 1, not %q", args)
	}
	return n, nil
}

func saveAndOffload(args string) (base, error) {
	keep, move, ok := strings.Cut(args, ";")
	if !ok {
		return base{}, fmt.Errorf("it takes two lists of names with a semicolon between")
	}
	var saved []string
	if keep != "" {
		var err error
		if saved, err = splitList(keep, "names"); err != nil {
			return base{}, err
		}
	}
	moved, err := splitList(move, "names")
	if err != nil {
		return base{}, err
	}
	for _, n := range moved {
		if slices.Contains(saved, n) {
			return base{}, fmt.Errorf("%q is in both lists", n)
		}
	}
	return decides(func(c *candidate) verdict {
		if c.isNamed(moved...) {
			return mustOffload
		}
		return unless(c, c.isNamed(saved...))
	}, needNames(append(saved, moved...))...), nil
}

// both keeps what either of two policies keeps. The names may have parameters of their own, so every
// comma is tried as the border.
func both(args string) (base, error) {
	for i := range args {
		if args[i] != ',' {
			continue
		}
		a, errA := resolve(args[:i])
		b, errB := resolve(args[i+1:])
		if errA == nil && errB == nil {
			u := decides(func(c *candidate) verdict {
				x, y := a.decide(c), b.decide(c)
				switch {
				case x == mustSave || y == mustSave:
					return mustSave
				case x == silent || y == silent:
					return silent
				case x == preferRecompute || y == preferRecompute:
					return preferRecompute
				}
				return max(x, y)
			}, append(slices.Clone(a.needs), b.needs...)...)
			u.empty = a.empty || b.empty
			return u, nil
		}
	}
	return base{}, fmt.Errorf("it takes two policies, separated by a comma, not %q", args)
}

func uniform(args string) (base, error) {
	n, err := count(args)
	if err != nil {
		return base{}, err
	}
	return decides(func(c *candidate) verdict {
		if c.list != "" && !c.leaves(n) {
			return mustRecompute
		}
		return silent
	}), nil
}

func block(args string) (base, error) {
	n, err := count(args)
	if err != nil {
		return base{}, err
	}
	return decides(func(c *candidate) verdict {
		if c.list != "" && c.pos < n {
			return full(c)
		}
		return silent
	}), nil
}

func every(args string) (base, error) {
	k, off, _ := strings.Cut(args, "+")
	n, err := count(k)
	if err != nil {
		return base{}, err
	}
	first := 0
	if off != "" {
		if first, err = strconv.Atoi(off); err != nil || first < 0 || first >= n {
			return base{}, fmt.Errorf("the offset is 0 … K-1, not %q", off)
		}
	}
	return decides(func(c *candidate) verdict {
		if c.list != "" && c.pos%n == first {
			return full(c)
		}
		return silent
	}), nil
}

func selective(args string) (base, error) {
	if args == "" {
		args = "core_attn"
	}
	if n, err := strconv.Atoi(args); err == nil {
		if n < 1 {
			return base{}, fmt.Errorf("every %d-th layer?", n)
		}
		// torchtitan counts layers from 1.
		return decides(func(c *candidate) verdict {
			if c.list != "" && (c.pos+1)%n == 0 {
				return full(c)
			}
			return silent
		}), nil
	}
	if args == "op" {
		return decides(func(c *candidate) verdict {
			switch {
			case !c.inside():
				return silent
			case c.plainDot && c.turn%2 == 0 || c.isKind("attention"):
				return mustSave
			}
			return preferRecompute
		}), nil
	}
	if list, ok := strings.CutPrefix(args, "op="); ok {
		kinds, err := splitList(list, "kinds of op")
		if err != nil {
			return base{}, err
		}
		return decides(func(c *candidate) verdict {
			switch {
			case !c.inside():
				return silent
			case c.isKind(kinds...):
				return mustSave
			}
			return preferRecompute
		}, needOps(kinds)...), nil
	}
	mods, err := splitList(args, "modules")
	if err != nil {
		return base{}, err
	}
	var list []Module
	var needs []need
	for _, name := range mods {
		i := slices.IndexFunc(Modules(), func(m Module) bool { return m.Name == name })
		if i < 0 {
			var known []string
			for _, m := range Modules() {
				known = append(known, m.Name)
			}
			return base{}, fmt.Errorf("selective: %q is neither op, a number of layers, nor one of the modules %s", name, strings.Join(known, ", "))
		}
		m := Modules()[i]
		list = append(list, m)
		needs = append(needs, need{"module", name, func(c *candidate) bool { return c.region != "" && m.has(c) }})
	}
	return decides(func(c *candidate) verdict {
		for _, m := range list {
			if c.region != "" && m.has(c) {
				return mustRecompute
			}
		}
		return silent
	}, needs...), nil
}

// Module is what Megatron-LM calls a submodule to be recomputed.
type Module struct {
	Name    string
	Meaning string
	has     func(c *candidate) bool
}

// part reports whether c is made in a layer with one of the last names, and read only there.
func part(c *candidate, last ...string) bool {
	at := c.within(last...)
	return at != "" && !slices.ContainsFunc(c.readers, func(l string) bool { return l != at && !strings.HasPrefix(l, at+".") })
}

// Modules lists what selective takes.
func Modules() []Module {
	return []Module{
		{"core_attn", "what attention computes between the projections", func(c *candidate) bool {
			return c.isKind("attention") || c.isKind("softmax") && c.within("attn", "attention", "self_attn", "self_attention") != ""
		}},
		{"layernorm", "results of normalisations", func(c *candidate) bool { return c.isKind("layer_norm", "rms_norm") }},
		{"mlp", "the dense MLP but its result", func(c *candidate) bool { return part(c, "mlp", "ffn", "feed_forward") }},
		{"moe", "the mixture of experts but its result", func(c *candidate) bool { return part(c, "moe") }},
		{"shared_experts", "the shared expert but its result", func(c *candidate) bool { return part(c, "shared", "shared_expert", "shared_experts") }},
		{"moe_act", "activations of the experts", func(c *candidate) bool {
			return c.within("moe", "experts") != "" && c.isKind("silu", "gelu", "relu", "sigmoid", "tanh")
		}},
		{"mla_up_proj", "the up-projections of multi-latent attention", func(c *candidate) bool {
			return c.within("kv_up", "q_up", "kv_b_proj", "q_b_proj", "linear_kv_up_proj", "linear_q_up_proj") != ""
		}},
	}
}

// memoryBudget is made with the whole program in sight: see Apply.
func memoryBudget(args string) (base, error) {
	f, err := strconv.ParseFloat(args, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		return base{}, fmt.Errorf("it takes a fraction from 0 to 1, not %q", args)
	}
	b := decides(func(*candidate) verdict { return silent })
	b.empty, b.share = true, f
	return b, nil
}
