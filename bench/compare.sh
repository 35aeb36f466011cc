#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Looks for cases on the CPU where the variant that the library chooses is slower than a simpler one. Runs small and odd sizes of
# every operation that has a simpler variant, both in turns, on one thread and on all CPUs.
#
#     bench/compare.sh build/release/tessera [FOLDER [OPERATION...]]
#
# Each sweep below writes a table to FOLDER and prints its summary line. THREADS sets the numbers of threads ("1 4"), BUDGET the
# seconds for each pair.
tessera=$1 folder=${2:-compare}
shift; [ $# -gt 0 ] && shift
wanted=" $* "
mkdir -p "$folder"
rows=1,3,16,64,300
cols=1:16:x2,3,5,7,12,17,24,31:33:+1,48,65,100,256,1000,2049

sweep() { # name, operation, options: writes one table for each number of threads
    name=$1 operation=$2
    shift 2
    case "$wanted" in "  " | *" $operation "*) ;; *) return ;; esac
    for threads in ${THREADS:-1 $(nproc)}; do
        "$tessera" compare "$operation" --threads "$threads" --budget "${BUDGET:-0.2}" "$@" \
            >"$folder/$name.$threads.md" 2>"$folder/$name.$threads.err"
        printf '%-24s %s\n' "$name" "$(tail -n 1 "$folder/$name.$threads.md")"
    done
}

types=f32,bf16
sweep softmax softmax --rows $rows --cols $cols --dtype $types
sweep layernorm layernorm --rows $rows --cols $cols --dtype $types --weight --bias --dweight --dbias
sweep layernorm.plain layernorm --rows $rows --cols $cols --dtype $types
sweep rmsnorm rmsnorm --rows $rows --cols $cols --dtype $types --weight --dweight
sweep activation activation --rows 1,7,64 --cols 1,5,16,100,1000,11008 --dtype $types --kind gelu,gelu_tanh,silu,relu
sweep activation.gated activation --rows 1,7,64 --cols 1,5,16,100,1000,11008 --dtype $types --kind gelu,silu --up --dup
sweep cross-entropy cross-entropy --rows $rows --vocab $cols --dtype $types
sweep rope rope --seqlen 1,7,64 --num-heads 1,8 --head-dim 16,64,128 --dtype $types
sweep embedding embedding --tokens 1,7,64,512 --vocab 50,5000 --hidden 8,65,768 --dtype $types
sweep adamw adamw --rows 1,7 --cols 1,5,16,100,1000,65537 --dtype $types
for transpose in "" --transpose-b; do
    sweep "matmul.rows$transpose" matmul --pass forward --m 1:16:+1 --n 1,16,64,100,1000 --k 1,8,16,64,257,1024 --dtype $types $transpose
    sweep "matmul.narrow$transpose" matmul --pass forward --m 17,64,300 --n 1,2,4,8,16 --k 100,1024,4096 --dtype $types $transpose
    sweep "matmul.turned$transpose" matmul --pass forward --transpose-a --m 1,4,16,64 --n 1,16,100 --k 16,100,1000 --dtype $types $transpose
    sweep "matmul$transpose" matmul --pass forward --m 1,17,31,64,100,129,256 --n 3,17,64,100,384 --k 1,4,16,65,256 --dtype $types $transpose
done
sweep matmul.backward matmul --pass backward --da --db --m 1,4,17,64,129 --n 3,16,64,100,384 --k 1,16,65,256 --dtype $types
sweep attention attention --pass forward --batch-size 1 --seqlen 1,2,5,16,33,64,128,200 --num-heads 1,4 --head-dim 16,40,64,128 --mask none,causal --dtype $types
sweep attention.batch attention --pass forward --batch-size 4 --seqlen 1,8,32,65 --num-heads 8 --head-dim 32,64 --mask none,causal --dtype $types
sweep attention.few attention --pass forward --batch-size 1 --seqlen-q 1,3,8,16,33 --seqlen-k 16,64,512,3000 --num-heads 1,8 --head-dim 32,64,128 --mask causal --dtype $types
sweep attention.backward attention --pass backward --dq --dk --dv --batch-size 1 --seqlen 1,2,5,16,33,64,128,200 --num-heads 1,4 --head-dim 16,40,64,128 --mask none,causal --dtype $types
sweep attention-decode attention-decode --batch-size 1,4 --seqlen-k 1,2,5,16,33,64,128,300 --num-heads 8 --num-kv-heads 1,8 --head-dim 16,64,128 --dtype $types
