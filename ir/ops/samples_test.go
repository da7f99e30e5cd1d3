package ops_test

import "strings"

// Samples of every row: "op(operands) attributes flags". T is any dtype that the row takes, F is f32, f64 or
// bf16; @lo:hi the range of
// an operand's elements. Flags: !noref the reference can't run here; !nograd no differences (says why); !once no
// second derivative.
const sampleLines = `
neg(T[3,70])
abs(T[3,70])
sign(T[3,70])
floor(T[3,70])
ceil(T[3,70])
trunc(T[3,70])
round_even(T[3,70])
round_afz(T[3,70])
exp(T[3,70])
expm1(T[3,70])
log(T[3,70]@0.1:3)
log(T[70]) !nograd
log1p(T[3,70]@-0.5:3)
log1p(T[70]) !nograd
sqrt(T[3,70]@0.1:3)
sqrt(T[70]) !nograd
rsqrt(T[3,70]@0.1:3)
rsqrt(T[70]) !nograd
cbrt(T[3,70]@0.1:3)
cbrt(T[70]@-3:3)
sin(T[3,70])
cos(T[3,70])
tan(T[3,70]@-1:1)
tanh(T[3,70])
sinh(T[3,70])
cosh(T[3,70])
asin(T[3,70]@-0.9:0.9)
acos(T[3,70]@-0.9:0.9)
atan(T[3,70])
asinh(T[3,70])
acosh(T[3,70]@1.2:3)
atanh(T[3,70]@-0.9:0.9)
exp2(T[3,70])
log2(T[3,70]@0.1:3)
softplus(T[3,70])
erf(T[3,70])
erf_inv(T[3,70]@-0.9:0.9)
logistic(T[3,70])
not(T[3,70])
popcnt(T[3,70])
clz(T[3,70])
and(T[3,70], T[3,70])
or(T[3,70], T[3,70])
xor(T[3,70], T[3,70])
shl(T[3,70], T[3,70]@0:70)
shr_logical(T[3,70], T[3,70]@0:70)
shr_arith(T[3,70], T[3,70]@0:70)
add(T[3,70], T[3,70])
add(T[], T[])
add(T[0,3], T[0,3])
sub(T[3,70], T[3,70])
mul(T[3,70], T[3,70])
div(T[3,70], T[3,70]@0.5:2)
div(T[70], T[70]) !nograd
rem(T[3,70]@3:3.2, T[3,70]@1.1:1.3)
rem(T[70], T[70]@1:4) !nograd
pow(T[3,70]@0.2:3, T[3,70]@-2:3)
max(T[3,70], T[3,70])
min(T[3,70], T[3,70])
atan2(T[3,70]@0.2:2, T[3,70]@-2:-0.2)
compare(T[3,70], T[3,70]) dir=eq
compare(T[70], T[70]) dir=ne
compare(T[70], T[70]) dir=lt
compare(T[70], T[70]) dir=le
compare(T[70], T[70]) dir=gt
compare(T[70], T[70]) dir=ge
select(bool[3,70], T[3,70], T[3,70])
clamp(T[3,70]@-2:-1, T[3,70], T[3,70]@1:2)
convert(T[70]) to=f32 !nograd
convert(T[70]) to=f64
convert(T[70]) to=bf16 !nograd
convert(T[70]) to=f16 !nograd
convert(T[70]) to=i8 !nograd
convert(T[70]) to=u32 !nograd
convert(T[70]) to=i64 !nograd
convert(T[70]) to=bool !nograd
bitcast(f32[70]) to=u32
bitcast(i16[70]) to=bf16
bitcast(f64[70]) to=i64
is_finite(T[70])
fma(T[3,70], T[3,70], T[3,70])

constant() value=T
iota() dim=1 shape=[3,70] dtype=T
broadcast(T[3,1]) dims=[0,2] shape=[3,4,5]
broadcast(T[3,4]) dims=[2,0] shape=[4,2,3]
reshape(T[3,4,5]) shape=[6,10]
reshape(T[1]) shape=[]
transpose(T[3,4,5]) perm=[2,0,1]
slice(T[7,9]) start=[1,2] limit=[7,8] stride=[2,3]
slice(T[7,9]) start=[1,2] limit=[7,8]
pad(T[3,4], T[]) low=[1,2] high=[2,0] interior=[1,0]
pad(T[5,4], T[]) low=[-1,2] high=[2,-2]
concat(T[3,2], T[3,4], T[3,1]) dim=1
reverse(T[3,5]) dims=[0,1]
stop_gradient(T[3,5]) !nograd
copy(T[3,5])

reduce(T[3,70]) kind=sum axes=[1]
reduce(T[70,3]) kind=sum axes=[0]
reduce(T[3,2,5]) kind=sum axes=[0,2]
reduce(T[2,2100]) kind=sum axes=[1]
reduce(T[2100,2]) kind=sum axes=[0]
reduce(T[3,4]) kind=sum axes=[]
reduce(T[3,0]) kind=sum axes=[1]
reduce(T[3,4,3]@0.5:1.5) kind=prod axes=[0,2]
reduce(T[3,70]) kind=max axes=[1]
reduce(T[3,70]) kind=min axes=[1]
reduce(T[3,70]) kind=and axes=[0]
reduce(T[3,70]) kind=or axes=[1]
reduce(T[3,70]) kind=xor axes=[0,1]
reduce(f32[70000]) kind=sum axes=[0]
reduce(bf16[3,70000]) kind=max axes=[1]
argmax(T[3,70]) axis=1
argmax(T[4,5,6]) axis=1
argmax(T[3]) axis=0
argmin(T[3,70]) axis=0
argmin(T[4,5,6]) axis=2

contract(T[3,5], T[5,4]) lhs_contract=[1] rhs_contract=[0]
contract(T[2,3,5], T[2,4,5]) lhs_batch=[0] rhs_batch=[0] lhs_contract=[2] rhs_contract=[2]
contract(T[2,3,5], T[5,2,4]) lhs_contract=[0,2] rhs_contract=[1,0]
contract(bf16[3,5], bf16[5,4]) lhs_contract=[1] rhs_contract=[0] out=f32
grouped_contract(T[11,5], T[3,5,70], i32[3]@2:4)
grouped_contract(T[9,5], T[3,5,4], i64[3]@-1:2)
grouped_contract(T[11,6], T[3,70,6], i32[3]@2:4) transpose=true
grouped_outer(T[11,6], T[11,70], i32[3]@2:4)
grouped_outer(T[5,3], T[5,4], i32[4]@0:4)

conv(T[2,2,5,4], T[3,2,3,2])
conv(F[2,3,7,6], F[4,3,3,2]) strides=[2,1] padding=[1,0,2,1]
conv(F[2,3,7,6], F[4,3,3,2]) lhs_dilation=[2,1] rhs_dilation=[1,2] padding=[1,1,0,-1]
conv(F[2,4,5,5], F[6,2,3,3]) feature_groups=2 strides=[2,2] padding=[1,1,1,1]
conv(F[4,3,5,5], F[6,3,3,3]) batch_groups=2 padding=[1,0,0,2]
conv(F[2,7,6,3], F[3,2,3,4]) x_dims=[0,3,1,2] w_dims=[3,2,0,1] y_dims=[0,3,1,2] reverse=true strides=[1,2]
conv(F[2,6,9], F[6,1,3]) feature_groups=6
conv(F[2,3], F[4,3])
conv(f32[1,2,4150], f32[1,2,4150])
conv(f32[1,70,160], f32[2,70,155])
conv(f32[1,1,8300], f32[1,1,8300])
reduce_window(T[2,7,6]) window=[1,3,2] strides=[1,2,1] padding=[0,0,1,1,0,1] kind=sum
reduce_window(T[7,6]) window=[3,2] base_dilation=[2,1] window_dilation=[1,2] padding=[1,0,0,1] kind=sum
reduce_window(T[7,6]) window=[3,2] strides=[2,1] padding=[1,0,0,1] kind=max
reduce_window(T[7,6]) window=[3,2] strides=[2,3] kind=min
reduce_window(T[7,6]) window=[3,2] kind=prod !nograd
reduce_window(T[7,6]) window=[3,2] kind=and
reduce_window(T[7,6]) window=[3,2] kind=or
reduce_window(T[7,6]) window=[3,2] kind=xor
max_pool(T[2,7,6]) window=[1,3,2] strides=[1,2,2] padding=[0,0,1,1,0,0]
avg_pool(T[2,7,6]) window=[1,3,2] strides=[1,2,2] padding=[0,0,1,1,0,0]
avg_pool(T[2,7,6]) window=[1,3,2] strides=[1,2,2] padding=[0,0,1,1,1,0] count_padding=true
select_and_scatter(F[2,7,6], F[2,4,3]) window=[1,3,2] strides=[1,2,2] padding=[0,0,1,1,0,0]
select_and_scatter(F[7,6], F[6,5]) window=[3,2] padding=[1,0,0,0] kind=min
select_and_scatter(F[3,8,6], F[3,4,2]) window=[1,2,2] strides=[1,2,2] padding=[0,0,0,0,0,-2]
select_and_scatter(F[5,7], F[3,3]) window=[1,2] strides=[2,3] padding=[0,0,0,1]
select_and_scatter(F[8,8], F[2,8]) window=[2,1] strides=[4,1] window_dilation=[4,1] padding=[0,4,0,0]
select_and_gather(F[2,7,6], F[2,7,6]) window=[1,3,2] strides=[1,2,2] padding=[0,0,1,1,0,0]
select_and_gather(F[7,6], F[7,6]) window=[3,2] kind=min
select_and_scatter(F[9,8], F[4,5]) window=[3,2] strides=[2,1] window_dilation=[2,3] padding=[1,1,1,-1]
max_pool(F[9,8]) window=[3,2] strides=[2,1] window_dilation=[2,3] padding=[1,1,1,-1]
avg_pool(F[9,8]) window=[3,2] strides=[2,1] window_dilation=[2,3] padding=[1,1,1,-1]
reduce_window(F[9,8]) window=[3,2] window_dilation=[2,1] kind=max

take(T[5,7], i32[2,3]@-1:6)
take(T[3,5,2], u64[4]@0:6) axis=1
take(T[5], i64[]@0:4)
take_grad(T[9,70], i32[9]@-1:6) size=5
take_grad(T[2,9,3], i64[9]@0:5) axis=1 size=6
take_grad(T[12], i8[12]@0:3) size=4
take_grad(T[3,2,4], i32[3,2]@0:3) size=4
take_along(T[5,7], i32[3,7]@-1:6) axis=0
take_along(T[5,7], i32[5,4]@-1:8) axis=1
scatter_along(T[9,70], i32[9,70]@-1:6) axis=0 size=5
scatter_along(T[4,9], i32[4,9]@0:4) axis=1 size=5
scatter_along(T[2,5,3], i64[2,5,3]@0:3) axis=1 size=4
gather(T[5,7], i32[3,2]@-1:6) offset_dims=[1,2] start_index_map=[0,1] index_vector_dim=1 slice_sizes=[2,3]
gather(T[5,7], i32[3]@-1:6) offset_dims=[1] collapsed_slice_dims=[0] start_index_map=[0] index_vector_dim=1 slice_sizes=[1,7]
gather(T[5,7], i32[3,2]@-1:6) offset_dims=[0,2] start_index_map=[1,0] index_vector_dim=1 slice_sizes=[2,3] mode=fill
gather(T[2,5,7], i32[2,3,1]@-1:6) offset_dims=[2] collapsed_slice_dims=[1] operand_batching_dims=[0] start_indices_batching_dims=[0] start_index_map=[1] index_vector_dim=2 slice_sizes=[1,1,7]
scatter(T[5,7], i32[3,2]@-1:6, T[3,2,3]) update_window_dims=[1,2] scatter_dims_to_operand_dims=[0,1] index_vector_dim=1 kind=add
scatter(T[5,7], i32[3,2]@-1:6, T[3,2,3]) update_window_dims=[1,2] scatter_dims_to_operand_dims=[0,1] index_vector_dim=1 kind=add mode=clamp
scatter(T[5,20], i32[6]@-1:5, T[6,20]) update_window_dims=[1] inserted_window_dims=[0] scatter_dims_to_operand_dims=[0] index_vector_dim=1 kind=add
scatter(T[5,20], i32[6]@-1:5, T[6,20]) update_window_dims=[1] inserted_window_dims=[0] scatter_dims_to_operand_dims=[0] index_vector_dim=1 kind=set
scatter(T[5,4], i32[6]@-1:5, T[6,4]) update_window_dims=[1] inserted_window_dims=[0] scatter_dims_to_operand_dims=[0] index_vector_dim=1 kind=max
scatter(T[5,4], i32[6]@-1:5, T[6,4]) update_window_dims=[1] inserted_window_dims=[0] scatter_dims_to_operand_dims=[0] index_vector_dim=1 kind=min mode=clamp
scatter(T[5,4]@0.5:1.5, i32[6]@-1:5, T[6,4]@0.5:1.5) update_window_dims=[1] inserted_window_dims=[0] scatter_dims_to_operand_dims=[0] index_vector_dim=1 kind=mul
scatter(T[2,5,7], i32[2,3,1]@-1:6, T[2,3,7]) update_window_dims=[2] inserted_window_dims=[1] input_batching_dims=[0] scatter_indices_batching_dims=[0] scatter_dims_to_operand_dims=[1] index_vector_dim=2 kind=set
scatter(F[70,70], i32[70,1]@0:69, F[70,70]) update_window_dims=[0] inserted_window_dims=[1] scatter_dims_to_operand_dims=[1] index_vector_dim=1 kind=add
dynamic_slice(T[5,7], i32[]@-1:6, u8[]@0:9) sizes=[2,3]
dynamic_update_slice(T[5,7], T[2,3], i32[]@-1:6, i64[]@0:9)
one_hot(i32[2,3]@-1:6) depth=5
one_hot(u8[2,3]@0:6) depth=5 axis=1 dtype=T
histogram(i32[300]@-2:9) bins=8
histogram(u8[20,5]@0:120) bins=100

sort(T[3,70]) axis=1
sort(T[5,4,3]) axis=1 descending=true
sort(T[5,4], T[5,4], i32[5,4], bool[5,4]) axis=0
sort(f32[2,600]) axis=1
sort(f64[600,2], i8[600,2]) axis=0 descending=true
argsort(T[3,70]) axis=1
argsort(T[5,4,3]) axis=0 descending=true
argsort(u8[600]) axis=0
top_k(T[3,70]) k=5
top_k(F[70,9]) k=3
top_k(T[2,6]) k=6
top_k(F[3,1100]) k=2
top_k(T[3,4]) k=0
cumsum(T[3,5,4]) axis=1
cumsum(T[5,70]) axis=0 reverse=true exclusive=true
cumprod(T[3,5,4]) axis=1
cumprod(T[6]) axis=0 exclusive=true
cumprod(T[3,6]) axis=1 reverse=true
cumprod(T[3,6]) axis=1 reverse=true exclusive=true
cummax(T[3,9,4]) axis=1
cummax(T[3,9]) axis=1 reverse=true
cummin(T[9,3]) axis=0
cumarg(T[3,9,4]) axis=1 kind=max
cumarg(T[9,4]) axis=0 kind=min reverse=true
linear_scan(T[3,9,4], T[3,9,4]) axis=1
linear_scan(T[9,4], T[9,4]) axis=0 reverse=true

rng_bits(key[]) rng=7 shape=[3,70]
uniform(key[]) rng=7 shape=[3,70]
uniform(key[]) rng=7 shape=[70] dtype=bf16
uniform(key[]) rng=7 shape=[] dtype=f64
normal(key[]) rng=7 shape=[3,70]
normal(key[]) rng=7 shape=[70] dtype=f16
bernoulli(key[]) rng=7 shape=[3,70] p=0.3
dropout(T[3,70], key[]) rng=7 p=0.3
dropout(T[3,70]) rng=7 p=0
key_micro(key[], i32[]@0:9)
key_fold(key[], i32[]@0:9)

softmax(T[3,70]) axis=1
softmax(T[3,5,2]) axis=1
log_softmax(T[3,70]) axis=1
log_softmax(T[3,5,2]) axis=0
layer_norm(T[3,70], T[70], T[70])
layer_norm(T[2,3,5], T[5], T[5])
rms_norm(T[3,70], T[70])
rms_norm(T[2,3,5], T[5])
batch_norm(T[6,3,2], T[3], T[3], T[3], T[3]@0.5:1) axis=1
batch_norm(T[6,3], T[3], T[3], T[3], T[3]@0.5:1) axis=1 unbiased=false
batch_norm_inference(T[6,3,2], T[3], T[3], T[3], T[3]@0.5:1) axis=1
gelu(T[3,70])
gelu(T[3,70]) approx=tanh
relu(T[3,70])
silu(T[3,70])
rope(T[2,5,3,8], T[5,4], T[5,4])
rope(T[2,5,3,8], T[5,4], T[5,4]) style=interleaved
cross_entropy(T[6,11], i32[6]@0:10)
cross_entropy(T[6,11], i32[6]@0:10) ignore_index=3
mse(T[6,11], T[6,11])
gradient(T[], T[3]) !noref !nograd

attention(T[2,5,4,8], T[2,7,2,8], T[2,7,2,8]) causal=true !nograd
attention(T[1,70,2,8], T[1,70,2,8], T[1,70,2,8], key[]) p=0.2 rng=5 !nograd
attention_at(T[2,3,4,8], T[2,7,2,8], T[2,7,2,8], i32[]@-1:6)
attention_grad(T[2,5,4,8], T[2,7,2,8], T[2,7,2,8], T[2,5,4,8], T[2,4,5], T[2,5,4,8]) causal=true !nograd
adamw(T[3,70], T[3,70], T[3,70], T[3,70]@0:1, T[], i64[]@0:5) wd=0.1
sgd(T[3,70], T[3,70], T[]) wd=0.1
sgd_momentum(T[3,70], T[3,70], T[3,70], T[]) nesterov=true
lion(T[3,70], T[3,70], T[3,70], T[]) wd=0.1

optimization_barrier(T[3,5], i32[2], f64[])
all_reduce(T[3,5])
all_reduce(T[3,5]) kind=max !nograd
all_gather(T[3,5]) axis=0
reduce_scatter(T[3,5]) axis=1
all_to_all(T[3,5]) split_axis=0 concat_axis=1
collective_permute(T[3,5]) pairs=[0,0]
collective_permute(T[3,5]) pairs=[]
all_gather(T[3,5]) axis=0 size=2 !noref !nograd
foreign(f32[3], i32[]) symbol=f results=f32[2,3];i64[] !noref
print(f32[3], i32[], bool[2], bf16[2], key[]) !noref
assert(bool[3]) !noref
`

// refusalLines are samples that break a constraint which no change of a sample above breaks.
const refusalLines = `
avg_pool(bf16[40,40]) window=[20,20]
dynamic_update_slice(key[2], key[1], i32[])
sort(f32[2147483648]) axis=0
pad(f32[3], f32[]) low=[-2] high=[-2]
collective_permute(f32[3]) pairs=[0,0,0,1] size=3
`

func parseLines(text string) []sample {
	var out []sample
	for _, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, parseSample(line))
		}
	}
	return out
}

func samples() []sample  { return parseLines(sampleLines) }
func refusals() []sample { return parseLines(refusalLines) }

// programs are modules whose function @f has the named op.
func programs() map[string]string {
	return map[string]string{
		"fused": `func @f(%x: f32[3,4], %y: f32[3,4]) -> (z) {
  %z = fused %x, %y : f32[3,4] loc(l) (%a: f32[3,4], %b: f32[3,4]) {
    %c = mul %a, %b : f32[3,4] loc(l)
    %d = add %c, %a : f32[3,4] loc(l)
    yield %d
  }
  return %z
}`,
		"while": `func @f(%x: f64[3]) -> (y) {
  %zero = constant {value=dense(i32[]: 0)} : i32[] loc(l)
  %i, %y = while %zero, %x : i32[], f64[3] loc(l) (%i0: i32[], %x0: f64[3]) {
    %n = constant {value=dense(i32[]: 4)} : i32[] loc(l)
    %c = compare %i0, %n {dir="lt"} : bool[] loc(l)
    yield %c
  } (%i1: i32[], %x1: f64[3]) {
    %one = constant {value=dense(i32[]: 1)} : i32[] loc(l)
    %i2 = add %i1, %one : i32[] loc(l)
    %x2 = mul %x1, %x1 : f64[3] loc(l)
    yield %i2, %x2
  }
  return %y
}`,
		"if": `func @f(%x: f64[3], %p: bool[]) -> (y) {
  %y = if %p, %x : f64[3] loc(l) (%a: f64[3]) {
    %b = exp %a : f64[3] loc(l)
    yield %b
  } (%c: f64[3]) {
    %d = neg %c : f64[3] loc(l)
    yield %d
  }
  return %y
}`,
		"case": `func @f(%x: f64[3], %i: i32[]) -> (y) {
  %y = case %i, %x : f64[3] loc(l) (%a: f64[3]) {
    %b = exp %a : f64[3] loc(l)
    yield %b
  } (%c: f64[3]) {
    %d = neg %c : f64[3] loc(l)
    yield %d
  }
  return %y
}`,
		"call": `func @g(%x: f64[3]) -> (y) {
  %y = exp %x : f64[3] loc(l)
  return %y
}

func @f(%x: f64[3]) -> (y) {
  %y = call %x {callee="g"} : f64[3] loc(l)
  return %y
}`,
		"reduce_region": `func @f(%x: f32[3,70], %i: i32[3,70], %x0: f32[], %i0: i32[]) -> (best, at) {
  %best, %at = reduce_region %x, %i, %x0, %i0 {axes=[1]} : f32[3], i32[3] loc(l) (%a: f32[], %ai: i32[], %e: f32[], %ei: i32[]) {
    %c = compare %a, %e {dir="ge"} : bool[] loc(l)
    %m = select %c, %a, %e : f32[] loc(l)
    %n = select %c, %ai, %ei : i32[] loc(l)
    yield %m, %n
  }
  return %best, %at
}`,
	}
}

// badPrograms break the constraint that their name says.
func badPrograms() map[string]string {
	fn := func(body string) string {
		return "func @f(%x: f32[3], %p: bool[], %i: i32[]) -> (y) {\n" + body + "\nreturn %y\n}"
	}
	return map[string]string{
		"fused/C1": fn(`%y = fused %x : f32[4] loc(l) (%a: f32[4]) { yield %a }`),
		"while/C1": fn(`%y = while %x : f32[3] loc(l) (%a: f32[4]) { yield %a } (%b: f32[3]) { yield %b }`),
		"while/C2": fn(`%y = while %x : f32[3] loc(l) (%a: f32[3]) { yield %a } (%b: f32[3]) { yield %b }`),
		"while/C3": fn(`%y, %q = while %x, %p : f32[3], bool[] loc(l) (%a: f32[3], %c: bool[]) { yield %c } (%b: f32[3], %d: bool[]) { yield %b }`),
		"if/C1":    fn(`%y = if %x, %x : f32[3] loc(l) (%a: f32[3]) { yield %a } (%b: f32[3]) { yield %b }`),
		"if/C2":    fn(`%y = if %p, %x : f32[4] loc(l) (%a: f32[4]) { yield %a } (%b: f32[3]) { yield %b }`),
		"if/C3":    fn(`%y = if %p, %x, %i : f32[3] loc(l) (%a: f32[3], %c: i32[]) { yield %a } (%b: f32[3], %d: i32[]) { yield %d }`),
		"case/C1":  fn(`%y = case %p, %x : f32[3] loc(l) (%a: f32[3]) { yield %a }`),
		"case/C2":  fn(`%y = case %i, %x : f32[4] loc(l) (%a: f32[4]) { yield %a }`),
		"case/C3":  fn(`%y = case %i, %x, %p : f32[3] loc(l) (%a: f32[3], %c: bool[]) { yield %a } (%b: f32[3], %d: bool[]) { yield %d }`),
		"call/C1":  "func @g(%x: f32[4]) -> (y) {\nreturn %x\n}\n" + fn(`%y = call %x {callee="g"} : f32[4] loc(l)`),
		"reduce_region/C1": fn(`%z = constant {value=dense(f32[]: 0)} : f32[] loc(l)
%y = reduce_region %x, %z {axes=[0]} : f32[] loc(l) (%a: f32[], %b: f64[]) { yield %a }`),
		"reduce_region/C2": fn(`%z = constant {value=dense(f32[]: 0)} : f32[] loc(l)
%y = reduce_region %x, %z {axes=[0]} : f32[] loc(l) (%a: f32[], %b: f32[]) { yield %a, %b }`),
		"reduce_region/C3": fn(`%z = constant {value=dense(f32[]: 0)} : f32[] loc(l)
%y = reduce_region %x, %z {axes=[0]} : f32[] loc(l) (%a: f32[], %b: f32[]) { print %a loc(l) yield %a }`),
	}
}
