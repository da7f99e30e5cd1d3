package nn

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"reprise/internal/diag"
	"reprise/ir"
)

// Option is a setting of a builtin model.
type Option struct {
	Name    string
	Kind    string // "int", "float", "word"
	Default string
	Doc     string
	Words   []string // for words: the values that exist
	Min     float64  // least value of a number
	Max     float64  // greatest value of an integer
}

// Values are the settings of one use of a builtin model, defaults included.
type Values struct{ m map[string]string }

// Int is an integer setting.
func (v Values) Int(name string) int64 { n, _ := strconv.ParseInt(v.m[name], 10, 64); return n }

// Float is a number.
func (v Values) Float(name string) float64 { x, _ := strconv.ParseFloat(v.m[name], 64); return x }

// Word is a word.
func (v Values) Word(name string) string { return v.m[name] }

// Builtin describes a model that comes with the program.
type Builtin struct {
	Name    string
	Doc     string
	Options []Option
	build   func(v Values) Model
	check   func(v Values) error // what no single option can tell; may be nil
}

// Use is a builtin model with its settings.
type Use struct {
	Builtin *Builtin
	Values  Values
	Spec    string // canonical: name and the settings that differ from the defaults
	Recipe  Recipe
	model   Model
}

// Train makes the training module.
func (u *Use) Train() (*ir.Module, error) { return train(u.model, u.Recipe, false) }

// Infer makes the inference module.
func (u *Use) Infer() (*ir.Module, error) { return infer(u.model, false) }

// Parameters is the number of trained elements of the model with these settings.
func (u *Use) Parameters() (int64, error) {
	m, err := u.Infer()
	if err != nil {
		return 0, err
	}
	n := int64(0)
	for _, p := range m.Func("step").Body.Params {
		if p.Role() == ir.RoleParam {
			n += p.Type.Len()
		}
	}
	return n, nil
}

// Help is the model's line, with the number of its parameters, and its options, one a
// line, with their defaults.
func (b *Builtin) Help() (string, error) {
	u, err := ParseBuiltin(b.Name)
	if err != nil {
		return "", err
	}
	n, err := u.Parameters()
	if err != nil {
		return "", err
	}
	var w strings.Builder
	fmt.Fprintf(&w, "builtin:%s  %s; %s parameters\n", b.Name, b.Doc, grouped(n))
	for _, o := range b.Options {
		doc := o.Doc
		if o.Kind == "word" {
			doc += ": " + strings.Join(o.Words, ", ")
		}
		fmt.Fprintf(&w, "  %-22s %s\n", o.Name+"="+o.Default, doc)
	}
	return w.String(), nil
}

// grouped is n with its digits in groups of three.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Builtins lists the models, in the order of their documentation.
func Builtins() []*Builtin {
	gpt := gptOptions()
	return []*Builtin{
		{Name: "mlp", Doc: "dense layers with GELU, classifying vectors", Options: mlpOptions(), build: mlp, check: microCheck},
		{Name: "gpt", Doc: "decoder-only transformer as GPT-2: pre-LN, learned positions, tied embedding", Options: gpt, build: gptModel, check: gptCheck},
		{Name: "gpt2-124m", Doc: "gpt in the sizes of GPT-2 124M", Options: with(gpt, "layers", "12", "d", "768", "heads", "12",
			"vocab", "50257", "seq", "64", "batch", "4", "dropout", "0", "lr", "0.0006", "min_lr", "6e-05"), build: gptModel, check: gptCheck},
		{Name: "llama", Doc: "decoder-only transformer as Llama: RMSNorm, RoPE, grouped queries, SwiGLU", Options: llamaOptions(), build: llama, check: llamaCheck},
		{Name: "moe", Doc: "transformer with top-k routed SwiGLU experts, no capacity limit", Options: moeOptions(), build: moe, check: moeCheck},
		{Name: "qwen", Doc: "Qwen2.5: bf16, grouped queries, biases at q, k and v, SwiGLU, tied embedding", Options: qwenOptions(), build: qwen, check: llamaCheck},
		{Name: "llama4", Doc: "Llama 4: bf16, sigmoid router on one of the experts beside a shared one, load balanced by biases", Options: llama4Options(), build: llama4, check: routedCheck},
		{Name: "mixtral", Doc: "Mixtral: bf16, softmax router on two experts, load balanced by a loss", Options: mixtralOptions(), build: mixtral, check: routedCheck},
		{Name: "cnn", Doc: "two convolutions with pooling, classifying images", Options: cnnOptions(), build: cnn, check: cnnCheck},
		{Name: "resnet", Doc: "residual network with batch norm, three stages as for CIFAR", Options: resnetOptions(), build: resnet, check: resnetCheck},
		{Name: "lstm", Doc: "long short-term memory over tokens, unrolled", Options: lstmOptions(), build: lstm, check: microCheck},
	}
}

// with is a list of options with other defaults, given as name, value pairs.
func with(opts []Option, pairs ...string) []Option {
	opts = slices.Clone(opts)
	for i := 0; i < len(pairs); i += 2 {
		k := slices.IndexFunc(opts, func(o Option) bool { return o.Name == pairs[i] })
		if k < 0 {
			panic("BUG: no option " + pairs[i])
		}
		opts[k].Default = pairs[i+1]
	}
	return opts
}

func intOpt(name string, def, least int64, doc string) Option {
	most := float64(1 << 24)
	if name == "layers" || name == "blocks" || name == "micro" {
		most = 1024 // the program grows with them
	}
	return Option{Name: name, Kind: "int", Default: fmt.Sprint(def), Doc: doc, Min: float64(least), Max: most}
}

func floatOpt(name string, def float64, doc string) Option {
	return Option{Name: name, Kind: "float", Default: strconv.FormatFloat(def, 'g', -1, 64), Doc: doc}
}

func wordOpt(name, def, doc string, words ...string) Option {
	return Option{Name: name, Kind: "word", Default: def, Doc: doc, Words: words}
}

// trainingOptions are common to all models; they matter when a training step is made.
func trainingOptions(optimizer, schedule string, lr, decay, clip float64, warmup, steps int64) []Option {
	return []Option{
		wordOpt("optimizer", optimizer, "optimizer", "adamw", "sgd", "lion"),
		floatOpt("lr", lr, "greatest learning rate"),
		floatOpt("min_lr", lr/10, "learning rate at the end of the schedule"),
		wordOpt("schedule", schedule, "learning rate over the steps", "constant", "cosine", "linear"),
		intOpt("warmup", warmup, 0, "steps over which the rate rises"),
		intOpt("steps", steps, 1, "step at which the schedule ends"),
		floatOpt("decay", decay, "weight decay, of matrices only"),
		floatOpt("clip", clip, "greatest global norm of the gradients; 0: not clipped"),
		intOpt("micro", 1, 1, "micro-batches a step"),
		floatOpt("beta1", 0.9, "decay of the first moment (adamw, lion)"),
		floatOpt("beta2", 0.95, "decay of the second moment (adamw), of the momentum (lion)"),
		floatOpt("eps", 1e-8, "added to the root of the second moment (adamw)"),
		floatOpt("momentum", 0.9, "momentum (sgd)"),
		floatOpt("ema", 0, "decay of a moving average of the parameters, kept as state; 0: none"),
		floatOpt("loss_scale", 0, "first factor of the loss, which adapts and skips steps that overflow; 0: the loss is not scaled"),
	}
}

// RecipeOf reads the training options.
func RecipeOf(v Values) Recipe {
	r := Recipe{Clip: v.Float("clip"), Micro: int(v.Int("micro")), EMA: v.Float("ema"), Scale: LossScale{First: v.Float("loss_scale")}}
	switch v.Word("optimizer") {
	case "sgd":
		r.Optimizer = SGD{Momentum: v.Float("momentum"), Decay: v.Float("decay")}
	case "lion":
		r.Optimizer = Lion{Beta1: v.Float("beta1"), Beta2: v.Float("beta2"), Decay: v.Float("decay")}
	default:
		r.Optimizer = AdamW{Beta1: v.Float("beta1"), Beta2: v.Float("beta2"), Eps: v.Float("eps"), Decay: v.Float("decay")}
	}
	lr, low, warmup, steps := v.Float("lr"), v.Float("min_lr"), v.Int("warmup"), v.Int("steps")
	switch v.Word("schedule") {
	case "constant":
		r.Schedule = Constant{lr}
	case "linear":
		r.Schedule = Linear{LR: lr, Min: low, Warmup: warmup, Steps: steps}
	default:
		r.Schedule = Cosine{LR: lr, Min: low, Warmup: warmup, Steps: steps}
	}
	return r
}

// ParseRecipe is a recipe for a module that is no builtin model, from the same options
// as NAME=VALUE.
func ParseRecipe(settings []string) (Recipe, error) {
	opts := trainingOptions("adamw", "constant", 3e-4, 0.1, 0, 0, 1000)
	v, _, err := parseValues("training", opts, settings)
	if err != nil {
		return Recipe{}, err
	}
	return RecipeOf(v), nil
}

// ParseBuiltin reads NAME[,key=value…], without the "builtin:" in front. An unknown name,
// key or value is an error that lists what exists.
func ParseBuiltin(spec string) (*Use, error) {
	name, rest, more := strings.Cut(spec, ",")
	all := Builtins()
	i := slices.IndexFunc(all, func(b *Builtin) bool { return b.Name == name })
	if i < 0 {
		names := make([]string, len(all))
		for k, b := range all {
			names[k] = b.Name
		}
		return nil, diag.Errorf("model", "no builtin model %q", name).WithHint("%s", exist("models", name, names))
	}
	b := all[i]
	var settings []string
	if more {
		settings = strings.Split(rest, ",")
	}
	v, canonical, err := parseValues("builtin:"+name, b.Options, settings)
	if err != nil {
		return nil, err
	}
	if b.check != nil {
		if err := b.check(v); err != nil {
			return nil, diag.Errorf("option", "builtin:%s: %v", name, err)
		}
	}
	u := &Use{Builtin: b, Values: v, Spec: strings.Join(append([]string{name}, canonical...), ","), Recipe: RecipeOf(v), model: b.build(v)}
	u.model.Name = b.Name
	return u, nil
}

// parseValues reads key=value settings; the second result is those that differ from the
// defaults, in the order of the options.
func parseValues(what string, opts []Option, settings []string) (Values, []string, error) {
	v := Values{map[string]string{}}
	for _, o := range opts {
		v.m[o.Name] = o.Default
	}
	seen := map[string]bool{}
	for _, set := range settings {
		key, val, ok := strings.Cut(set, "=")
		i := slices.IndexFunc(opts, func(o Option) bool { return o.Name == key })
		switch {
		case !ok:
			return v, nil, diag.Errorf("option", "%s: %q is no option: want key=value", what, set).WithHint("%s", exist("options", key, optionNames(opts)))
		case i < 0:
			return v, nil, diag.Errorf("option", "%s: no option %q", what, key).WithHint("%s", exist("options", key, optionNames(opts)))
		case seen[key]:
			return v, nil, diag.Errorf("option", "%s: option %q is given twice", what, key)
		}
		seen[key] = true
		clean, err := opts[i].parse(val)
		if err != nil {
			return v, nil, diag.Errorf("option", "%s: %s=%s: %v", what, key, val, err).WithHint("%s: %s (default %s)", key, opts[i].Doc, opts[i].Default)
		}
		v.m[key] = clean
	}
	if seen["lr"] && !seen["min_lr"] {
		// Twelve digits, so that a tenth of 0.003 reads 0.0003.
		v.m["min_lr"] = strconv.FormatFloat(v.Float("lr")/10, 'g', 12, 64)
	}
	var canonical []string
	for _, o := range opts {
		if v.m[o.Name] != o.Default {
			canonical = append(canonical, o.Name+"="+v.m[o.Name])
		}
	}
	return v, canonical, nil
}

// parse checks a value and gives its canonical form.
func (o Option) parse(val string) (string, error) {
	switch o.Kind {
	case "int":
		n, err := strconv.ParseInt(val, 10, 64)
		if err != nil {
			return "", fmt.Errorf("want an integer")
		}
		if float64(n) < o.Min {
			return "", fmt.Errorf("want at least %d", int64(o.Min))
		}
		if float64(n) > o.Max {
			return "", fmt.Errorf("want at most %d", int64(o.Max))
		}
		return fmt.Sprint(n), nil
	case "float":
		x, err := strconv.ParseFloat(val, 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return "", fmt.Errorf("want a number")
		}
		if x < o.Min {
			return "", fmt.Errorf("want at least %v", o.Min)
		}
		if slices.Contains([]string{"dropout", "jitter", "ema"}, o.Name) && x >= 1 {
			return "", fmt.Errorf("want less than 1")
		}
		return strconv.FormatFloat(x, 'g', -1, 64), nil
	}
	if !slices.Contains(o.Words, val) {
		return "", fmt.Errorf("want one of %s", strings.Join(o.Words, ", "))
	}
	return val, nil
}

func optionNames(opts []Option) []string {
	out := make([]string, len(opts))
	for i, o := range opts {
		out[i] = o.Name
	}
	return out
}

// exist says what there is, and what the person may have meant.
func exist(what, got string, names []string) string {
	text := what + ": " + strings.Join(names, ", ")
	best, dist := "", (len(got)+1)/3+1
	for _, n := range names {
		if d := editDistance(got, n); d < dist {
			best, dist = n, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %q? %s", best, text)
	}
	return text
}

// editDistance counts insertions, deletions, replacements and swaps of neighbours.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			d := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				d++
			}
			d = min(d, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
