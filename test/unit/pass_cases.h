/* Cases of test_pass.c: a pass, the lines of a model before it, and the lines after it; NULL: not changed. */
{"decompose",
 X "%1 = param f32[8] \"m\"\n%2 = param f32[8] \"v\"\n%3 = param f32[8] \"w\"\n"
   "%4 = param f32[8] \"b\"\n%5 = batch_norm %0 %1 %2 %3 %4 eps=0.5\n"
   "output %5 \"y\"\n",
 X "%1 = param f32[8] \"m\"\n%2 = param f32[8] \"v\"\n%3 = param f32[8] \"w\"\n"
   "%4 = param f32[8] \"b\"\n%5 = scalar value=0.5\n%6 = add %2 %5\n"
   "%7 = rsqrt %6\n%8 = mul %3 %7\n%9 = reshape %8 shape=[8,1,1]\n"
   "%10 = mul %0 %9\n%11 = mul %1 %8\n%12 = sub %4 %11\n"
   "%13 = reshape %12 shape=[8,1,1]\n%14 = add %10 %13\noutput %14 \"y\"\n"},
    {"decompose", V "%1 = softmax %0 axis=1\noutput %1 \"y\"\n",
     V "%1 = reduce_max %0 axes=[1] keepdim=true\n%2 = sub %0 %1\n%3 = exp %2\n"
       "%4 = sum %3 axes=[1] keepdim=true\n%5 = reciprocal %4\n%6 = mul %3 %5\noutput %6 \"y\"\n"},
    {"decompose", V "%1 = log_softmax %0 axis=1\noutput %1 \"y\"\n",
     V "%1 = reduce_max %0 axes=[1] keepdim=true\n%2 = sub %0 %1\n%3 = exp %2\n"
       "%4 = sum %3 axes=[1] keepdim=true\n%5 = log %4\n%6 = sub %2 %5\noutput %6 \"y\"\n"},
    {"decompose", "%0 = input f32[$0,0] \"x\"\n%1 = softmax %0 axis=1\noutput %1 \"y\"\n",
     "%0 = input f32[$0,0] \"x\"\noutput %0 \"y\"\n"},
    {"decompose",
     V "%1 = param f32[8] \"w\"\n%2 = param f32[8] \"b\"\n"
       "%3 = layer_norm %0 %1 %2 axes=[1] eps=0.5\noutput %3 \"y\"\n",
     V "%1 = param f32[8] \"w\"\n%2 = param f32[8] \"b\"\n"
       "%3 = mean %0 axes=[1] keepdim=true\n%4 = sub %0 %3\n%5 = square %4\n"
       "%6 = mean %5 axes=[1] keepdim=true\n%7 = scalar value=0.5\n%8 = add %6 %7\n"
       "%9 = rsqrt %8\n%10 = mul %4 %9\n%11 = mul %10 %1\n%12 = add %11 %2\n"
       "output %12 \"y\"\n"},
    {"decompose",
     V "%1 = param f32[8] \"w\"\n%2 = rms_norm %0 %1 axes=[1] eps=0.5\noutput %2 \"y\"\n",
     V "%1 = param f32[8] \"w\"\n%2 = square %0\n%3 = mean %2 axes=[1] keepdim=true\n"
       "%4 = scalar value=0.5\n%5 = add %3 %4\n%6 = rsqrt %5\n%7 = mul %0 %6\n"
       "%8 = mul %7 %1\noutput %8 \"y\"\n"},
    /* A group of one channel keeps the shape; other groups become dims. */
    {"decompose",
     X "%1 = param f32[8] \"w\"\n%2 = group_norm %0 %1 groups=8 eps=0.5\noutput %2 \"y\"\n",
     X "%1 = param f32[8] \"w\"\n%2 = mean %0 axes=[2,3] keepdim=true\n%3 = sub %0 %2\n"
       "%4 = square %3\n%5 = mean %4 axes=[2,3] keepdim=true\n%6 = scalar value=0.5\n"
       "%7 = add %5 %6\n%8 = rsqrt %7\n%9 = mul %3 %8\n%10 = reshape %1 shape=[8,1,1]\n"
       "%11 = mul %9 %10\noutput %11 \"y\"\n"},
    {"decompose",
     X "%1 = param f32[8] \"w\"\n%2 = group_norm %0 %1 groups=2 eps=0.5\noutput %2 \"y\"\n",
     X "%1 = param f32[8] \"w\"\n%2 = reshape %0 shape=[$0,2,4,36]\n"
       "%3 = mean %2 axes=[2,3] keepdim=true\n%4 = sub %2 %3\n%5 = square %4\n"
       "%6 = mean %5 axes=[2,3] keepdim=true\n%7 = scalar value=0.5\n%8 = add %6 %7\n"
       "%9 = rsqrt %8\n%10 = mul %4 %9\n%11 = reshape %1 shape=[2,4,1]\n%12 = mul %10 %11\n"
       "%13 = reshape %12 shape=[$0,8,6,6]\noutput %13 \"y\"\n"},
    /* A stride of 2 has four phases; with stride 1, the weight is reversed and the result is that of the conv. */
    {"decompose",
     X "%1 = param f32[8,3,2,2] \"w\"\n%2 = param f32[3] \"b\"\n"
       "%3 = conv_transpose %0 %1 %2 stride=[2,2]\noutput %3 \"y\"\n",
     X "%1 = param f32[8,3,2,2] \"w\"\n%2 = param f32[3] \"b\"\n"
       "%3 = reshape %1 shape=[1,8,3,1,2,1,2]\n%4 = permute %3 axes=[0,2,4,6,1,3,5]\n"
       "%5 = reshape %4 shape=[12,8,1,1]\n%6 = reshape %2 shape=[3,1]\n"
       "%7 = expand %6 shape=[3,4]\n%8 = reshape %7 shape=[12]\n%9 = conv %0 %5 %8\n"
       "%10 = reshape %9 shape=[$0,3,2,2,6,6]\n%11 = permute %10 axes=[0,1,4,2,5,3]\n"
       "%12 = reshape %11 shape=[$0,3,12,12]\noutput %12 \"y\"\n"},
    {"decompose",
     X "%1 = param f32[8,3,3,1] \"w\"\n%2 = conv_transpose %0 %1 pad=[1,0,1,0]\n"
       "output %2 \"y\"\n",
     X "%1 = param f32[8,3,3,1] \"w\"\n%2 = reshape %1 shape=[1,8,3,3,1,1,1]\n"
       "%3 = slice %2 axis=3 start=2 step=-1 shape=[3]\n"
       "%4 = permute %3 axes=[0,2,4,6,1,3,5]\n%5 = reshape %4 shape=[3,8,3,1]\n"
       "%6 = conv %0 %5 pad=[1,0,1,0]\noutput %6 \"y\"\n"},
    {"decompose",
     "%0 = input f32[$0,2,5,6,7] \"x\"\n%1 = param f32[4,1,2,3,3] \"w\"\n"
     "%2 = conv %0 %1 stride=[2,1] depth=[2,3,1,0] groups=2\noutput %2 \"y\"\n",
     "%0 = input f32[$0,2,5,6,7] \"x\"\n%1 = param f32[4,1,2,3,3] \"w\"\n"
     "%2 = reshape %0 shape=[$0,2,5,42]\n%3 = pad %2 pad=[1,0,0,0]\n"
     "%4 = reshape %3 shape=[$0,2,6,6,7]\n%5 = slice %4 axis=2 step=2 shape=[2]\n"
     "%6 = reshape %5 shape=[$0,2,1,2,6,7]\n%7 = slice %4 axis=2 start=3 step=2 shape=[2]\n"
     "%8 = reshape %7 shape=[$0,2,1,2,6,7]\n%9 = concat %6 %8 axis=2\n"
     "%10 = reshape %9 shape=[$0,4,2,6,7]\n%11 = permute %10 axes=[0,2,1,3,4]\n"
     "%12 = reshape %11 shape=[2*$0,4,6,7]\n%13 = reshape %1 shape=[4,2,3,3]\n"
     "%14 = conv %12 %13 stride=[2,1] groups=2\n%15 = reshape %14 shape=[$0,2,4,2,5]\n"
     "%16 = permute %15 axes=[0,2,1,3,4]\noutput %16 \"y\"\n"},
    {"compose",
     QKV "%3 = permute %1 axes=[0,1,3,2]\n%4 = matmul %0 %3\n%5 = scalar value=2.0\n"
         "%6 = div %4 %5\n%7 = softmax %6 axis=3\n%8 = matmul %7 %2\noutput %8 \"y\"\n",
     QKV "%3 = permute %1 axes=[0,1,2,3]\n%4 = attention %0 %3 %2 scale=0.5 strict=true\n"
         "output %4 \"y\"\n"},
    {"compose",
     QKV "%3 = permute %1 axes=[0,1,3,2]\n%4 = matmul %0 %3 factors=bf16\n"
         "%5 = softmax %4 axis=3\n%6 = matmul %5 %2 factors=bf16\noutput %6 \"y\"\n",
     QKV "%3 = permute %1 axes=[0,1,2,3]\n%4 = attention %0 %3 %2 strict=true factors=bf16\n"
         "output %4 \"y\"\n"},
    {"compose",
     QKV "%3 = input bool[5,7] \"m\"\n%4 = scalar value=0.5\n%5 = mul %0 %4\n"
         "%6 = permute %1 axes=[0,1,3,2]\n%7 = matmul %5 %6\n%8 = scalar value=3.0\n"
         "%9 = div %7 %8\n%10 = tanh %9\n%11 = mul %10 %8\n%12 = scalar value=-inf\n"
         "%13 = where %3 %12 %11\n%14 = softmax %13 axis=3\n%15 = matmul %14 %2\n"
         "output %15 \"y\"\n",
     QKV "%3 = input bool[5,7] \"m\"\n%4 = permute %1 axes=[0,1,2,3]\n%5 = bit_not %3\n"
         "%6 = attention %0 %4 %2 %5 scale=0.5 softcap=3.0 strict=true\noutput %6 \"y\"\n"},
    {"compose",
     "%0 = input f32[2*$0,3,5,4] \"q\"\n%1 = input f32[3,5,5] \"h\"\n"
     "%2 = input f32[2,1,5,5] \"w\"\n"
     "%3 = permute %0 axes=[0,1,3,2]\n%4 = matmul %0 %3\n%5 = add %4 %1\n"
     "%6 = reshape %5 shape=[$0,2,3,5,5]\n%7 = add %6 %2\n%8 = reshape %7 shape=[2*$0,3,5,5]\n"
     "%9 = softmax %8 axis=3\n%10 = matmul %9 %0\noutput %10 \"y\"\n",
     "%0 = input f32[2*$0,3,5,4] \"q\"\n%1 = input f32[3,5,5] \"h\"\n"
     "%2 = input f32[2,1,5,5] \"w\"\n%3 = reshape %0 shape=[$0,2,3,5,4]\n"
     "%4 = permute %0 axes=[0,1,2,3]\n%5 = reshape %4 shape=[$0,2,3,5,4]\n"
     "%6 = reshape %0 shape=[$0,2,3,5,4]\n%7 = reshape %1 shape=[1,1,3,5,5]\n%8 = add %7 %2\n"
     "%9 = attention %3 %5 %6 %8 strict=true\n%10 = reshape %9 shape=[2*$0,3,5,4]\n"
     "output %10 \"y\"\n"},
    /* The weights have another reader; a mask is scaled, too; the softmax is over another dim. */
    {"compose",
     QKV "%3 = permute %1 axes=[0,1,3,2]\n%4 = matmul %0 %3\n%5 = softmax %4 axis=3\n"
         "%6 = matmul %5 %2\noutput %6 \"y\"\noutput %5 \"w\"\n",
     NULL},
    {"compose",
     QKV "%3 = input f32[5,7] \"m\"\n%4 = permute %1 axes=[0,1,3,2]\n%5 = matmul %0 %4\n"
         "%6 = add %5 %3\n%7 = scalar value=2.0\n%8 = mul %6 %7\n%9 = softmax %8 axis=3\n"
         "%10 = matmul %9 %2\noutput %10 \"y\"\n",
     NULL},
    {"compose",
     QKV "%3 = permute %1 axes=[0,1,3,2]\n%4 = matmul %0 %3\n%5 = softmax %4 axis=2\n"
         "%6 = matmul %5 %2\noutput %6 \"y\"\n",
     NULL},
    {"decompose", V "%1 = logsumexp %0 axes=[1]\noutput %1 \"y\"\n",
     V "%1 = reduce_max %0 axes=[1] keepdim=true\n"
       "%2 = clamp %1 min=-3.4028234663852886e+38 max=3.4028234663852886e+38\n%3 = sub %0 %2\n"
       "%4 = exp %3\n%5 = sum %4 axes=[1] keepdim=true\n%6 = log %5\n%7 = add %6 %2\n"
       "%8 = reshape %7 shape=[$0]\noutput %8 \"y\"\n"},
    {"decompose", V "%1 = norm %0 axes=[1]\noutput %1 \"y\"\n",
     V "%1 = square %0\n%2 = sum %1 axes=[1]\n%3 = sqrt %2\noutput %3 \"y\"\n"},
    {"decompose", V "%1 = norm %0 axes=[1] p=1.0 keepdim=true\noutput %1 \"y\"\n",
     V "%1 = abs %0\n%2 = sum %1 axes=[1] keepdim=true\noutput %2 \"y\"\n"},
    {"decompose", V "%1 = norm %0 axes=[1] p=-inf\noutput %1 \"y\"\n",
     V "%1 = abs %0\n%2 = reduce_min %1 axes=[1]\noutput %2 \"y\"\n"},
    {"decompose", V "%1 = norm %0 axes=[1] p=0.0\noutput %1 \"y\"\n",
     V "%1 = scalar value=0.0\n%2 = equal %0 %1\n%3 = scalar value=0.0\n%4 = scalar value=1.0\n"
       "%5 = where %2 %3 %4\n%6 = sum %5 axes=[1]\noutput %6 \"y\"\n"},
    {"decompose", X "%1 = sum %0 axes=[0,2,3]\noutput %1 \"y\"\n",
     X "%1 = sum %0 axes=[3] keepdim=true\n%2 = sum %1 axes=[2] keepdim=true\n"
       "%3 = sum %2 axes=[0,2,3]\noutput %3 \"y\"\n"},
    {"decompose", X "%1 = mean %0 axes=[0,3] keepdim=true\noutput %1 \"y\"\n",
     X "%1 = mean %0 axes=[3] keepdim=true\n%2 = mean %1 axes=[0,3] keepdim=true\n"
       "output %2 \"y\"\n"},
    {"decompose", X "%1 = sum %0 axes=[0,1,2]\noutput %1 \"y\"\n", NULL},
    {"decompose", X "%1 = mean %0 axes=[2,3]\noutput %1 \"y\"\n", NULL},
    {"decompose", X "%1 = sum %0 axes=[0]\noutput %1 \"y\"\n", NULL},
    {"decompose", X "%1 = variance %0 axes=[0,2,3]\noutput %1 \"y\"\n",
     X "%1 = mean %0 axes=[3] keepdim=true\n%2 = mean %1 axes=[2] keepdim=true\n"
       "%3 = sub %0 %2\n%4 = square %3\n%5 = mean %4 axes=[3] keepdim=true\n"
       "%6 = mean %5 axes=[2] keepdim=true\n%7 = mean %2 axes=[0] keepdim=true\n"
       "%8 = sub %2 %7\n%9 = square %8\n%10 = add %6 %9\n%11 = mean %10 axes=[0,2,3]\n"
       "output %11 \"y\"\n"},
    {"decompose", V "%1 = variance %0 axes=[1] correction=1.0\noutput %1 \"y\"\n",
     V "%1 = mean %0 axes=[1] keepdim=true\n%2 = sub %0 %1\n%3 = square %2\n"
       "%4 = sum %3 axes=[1]\n%5 = scalar value=7.0\n%6 = div %4 %5\noutput %6 \"y\"\n"},
    {"decompose",
     "%0 = input f32[$0,6,4,8] \"q\"\n%1 = input f32[$0,2,5,8] \"k\"\n"
     "%2 = input f32[4,5] \"mask\"\n"
     "%3 = attention %0 %1 %1 %2 scale=0.5 softcap=2.0 causal=true\noutput %3 \"y\"\n",
     "%0 = input f32[$0,6,4,8] \"q\"\n%1 = input f32[$0,2,5,8] \"k\"\n"
     "%2 = input f32[4,5] \"mask\"\n%3 = reshape %0 shape=[$0,2,3,4,8]\n"
     "%4 = reshape %1 shape=[$0,2,1,5,8]\n%5 = permute %4 axes=[0,1,2,4,3]\n%6 = matmul %3 %5\n"
     "%7 = scalar value=0.5\n%8 = mul %6 %7\n%9 = scalar value=0.5\n%10 = mul %8 %9\n"
     "%11 = tanh %10\n%12 = scalar value=2.0\n%13 = mul %11 %12\n%14 = add %13 %2\n"
     "%15 = tril %14 value=-inf\n%16 = reduce_max %15 axes=[4] keepdim=true\n"
     "%17 = scalar value=-3.4028234663852886e+38\n%18 = maximum %16 %17\n%19 = sub %15 %18\n"
     "%20 = exp %19\n%21 = sum %20 axes=[4] keepdim=true\n%22 = scalar value=1.0\n"
     "%23 = maximum %21 %22\n%24 = div %20 %23\n%25 = reshape %1 shape=[$0,2,1,5,8]\n"
     "%26 = matmul %24 %25\n%27 = reshape %26 shape=[$0,6,4,8]\noutput %27 \"y\"\n"},
    {"simplify", /* the rows of a linear layer stay divided, for the sum behind it */
     "%0 = input f32[$0,8,4] \"x\"\n%1 = param f32[6,4] \"w\"\n%2 = reshape %0 shape=[8*$0,4]\n"
     "%3 = linear %2 %1\n%4 = reshape %3 shape=[$0,8,6]\n%5 = add %4 %4\noutput %5 \"y\"\n",
     "%0 = input f32[$0,8,4] \"x\"\n%1 = param f32[6,4] \"w\"\n%2 = linear %0 %1\n"
     "%3 = add %2 %2\noutput %3 \"y\"\n"},
    {"simplify",
     "%0 = input f32[$0,2,4,2] \"x\"\n%1 = param f32[6,4] \"w\"\n%2 = param f32[6] \"b\"\n"
     "%3 = reshape %0 shape=[4*$0,4]\n%4 = linear %3 %1 %2\n%5 = reshape %4 shape=[$0,4,6]\n"
     "output %5 \"y\"\n",
     "%0 = input f32[$0,2,4,2] \"x\"\n%1 = param f32[6,4] \"w\"\n%2 = param f32[6] \"b\"\n"
     "%3 = reshape %0 shape=[$0,4,4]\n%4 = linear %3 %1 %2\noutput %4 \"y\"\n"},
    {"simplify", /* two readers: the layer is computed once */
     "%0 = input f32[$0,8,4] \"x\"\n%1 = param f32[6,4] \"w\"\n%2 = reshape %0 shape=[8*$0,4]\n"
     "%3 = linear %2 %1\n%4 = reshape %3 shape=[$0,8,6]\noutput %3 \"y\"\noutput %4 \"z\"\n",
     NULL},
    {"simplify", X "%1 = reshape %0 shape=[$0,8,6,6]\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify",
     X "%1 = reshape %0 shape=[$0,48,6]\n%2 = reshape %1 shape=[$0,6,48]\n"
       "output %2 \"y\"\n",
     X "%1 = reshape %0 shape=[$0,6,48]\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = stop %0\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = expand %0 shape=[$0,8,6,6]\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = concat %0 axis=1\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify",
     X "%1 = permute %0 axes=[0,2,3,1]\n%2 = permute %1 axes=[0,3,1,2]\n%3 = exp %2\n"
       "output %3 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify",
     X "%1 = permute %0 axes=[0,2,3,1]\n%2 = permute %1 axes=[0,2,3,1]\n"
       "output %2 \"y\"\n",
     X "%1 = permute %0 axes=[0,3,1,2]\noutput %1 \"y\"\n"},
    {"simplify",
     X "%1 = scalar value=1.0\n%2 = mul %1 %0\n%3 = div %2 %1\n%4 = exp %3\noutput %4 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = scalar value=0.0\n%2 = sub %0 %1\n%3 = exp %2\noutput %3 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = scalar value=1.0\n%2 = div %1 %0\noutput %2 \"y\"\n", NULL},
    {"simplify", X "%1 = scalar value=0.0\n%2 = sub %1 %0\noutput %2 \"y\"\n", NULL},
    {"simplify", X "%1 = clamp %0\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = clamp %0 max=6.0\n%2 = exp %1\noutput %2 \"y\"\n", NULL},
    {"simplify", X "%1 = adaptive_avg_pool %0 kernel=[6,6]\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = slice %0 axis=1 shape=[8]\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = slice %0 axis=1 shape=[7]\n%2 = exp %1\noutput %2 \"y\"\n", NULL},
    {"simplify", X "%1 = slice %0 axis=1 start=7 step=-1 shape=[8]\n%2 = exp %1\noutput %2 \"y\"\n",
     NULL},
    {"simplify", X "%1 = place %0 axis=1 shape=[8]\n%2 = exp %1\noutput %2 \"y\"\n",
     X "%1 = exp %0\noutput %1 \"y\"\n"},
    {"simplify", X "%1 = place %0 axis=1 shape=[9]\n%2 = exp %1\noutput %2 \"y\"\n", NULL},
    {"simplify", X "%1 = place %0 axis=1 start=7 step=-1 shape=[8]\n%2 = exp %1\noutput %2 \"y\"\n",
     NULL},
    {"simplify", X "%1 = relu %0\n%2 = relu %1\noutput %2 \"y\"\n",
     X "%1 = relu %0\noutput %1 \"y\"\n"},
    {"simplify",
     V "%1 = param f32[1,8] \"w\"\n%2 = expand %1 shape=[$0,8]\n%3 = sub %2 %0\noutput %3 \"y\"\n",
     V "%1 = param f32[1,8] \"w\"\n%2 = sub %1 %0\noutput %2 \"y\"\n"},
    {"simplify",
     V "%1 = param f32[1,8] \"w\"\n%2 = expand %1 shape=[$0,8]\n%3 = add %2 %1\noutput %3 \"y\"\n",
     NULL},
    {"simplify",
     V "%1 = param f32[8] \"w\"\n%2 = expand %1 shape=[$0,8]\n%3 = add %0 %2\noutput %3 \"y\"\n",
     NULL},
    /* The mask of a relu before a max_pool is that of the pool's results. Not if it is a mask of something else, or another number. */
    {"simplify",
     X "%1 = input f32[$0,8,3,3] \"g\"\n"
       "%2 = relu %0\n"
       "%3 = scalar\n"
       "%4 = less_equal %2 %3\n"
       "%5 = max_pool_index %2 kernel=[2,2] stride=[2,2]\n"
       "%6 = max_pool_grad %1 %5 kernel=[2,2] stride=[2,2] shape=[$0,8,6,6]\n"
       "%7 = where %4 %3 %6\n"
       "output %7 \"y\"\n",
     X "%1 = input f32[$0,8,3,3] \"g\"\n"
       "%2 = relu %0\n"
       "%3 = max_pool %2 kernel=[2,2] stride=[2,2]\n"
       "%4 = scalar\n"
       "%5 = less_equal %3 %4\n"
       "%6 = where %5 %4 %1\n"
       "%7 = max_pool_index %2 kernel=[2,2] stride=[2,2]\n"
       "%8 = max_pool_grad %6 %7 kernel=[2,2] stride=[2,2] shape=[$0,8,6,6]\n"
       "output %8 \"y\"\n"},
    {"simplify",
     X "%1 = input f32[$0,8,3,3] \"g\"\n"
       "%2 = scalar\n"
       "%3 = less_equal %0 %2\n"
       "%4 = relu %0\n"
       "%5 = max_pool_index %4 kernel=[2,2] stride=[2,2]\n"
       "%6 = max_pool_grad %1 %5 kernel=[2,2] stride=[2,2] shape=[$0,8,6,6]\n"
       "%7 = where %3 %2 %6\n"
       "output %7 \"y\"\n",
     NULL},
    {"simplify",
     X "%1 = input f32[$0,8,3,3] \"g\"\n"
       "%2 = relu %0\n"
       "%3 = scalar value=1.0\n"
       "%4 = less_equal %2 %3\n"
       "%5 = max_pool_index %2 kernel=[2,2] stride=[2,2]\n"
       "%6 = max_pool_grad %1 %5 kernel=[2,2] stride=[2,2] shape=[$0,8,6,6]\n"
       "%7 = where %4 %3 %6\n"
       "output %7 \"y\"\n",
     NULL},
    {"simplify", V "%1 = param f32[8,4] \"w\"\n%2 = matmul %0 %1\noutput %2 \"y\"\n",
     V "%1 = param f32[8,4] \"w\"\n%2 = permute %1 axes=[1,0]\n%3 = linear %0 %2\n"
       "output %3 \"y\"\n"},
    {"simplify",
     V "%1 = input f32[8,4] \"z\"\n%2 = scalar value=3.0\n%3 = mul %0 %2\n"
       "%4 = matmul %3 %1\noutput %4 \"y\"\n",
     V "%1 = input f32[8,4] \"z\"\n%2 = matmul %0 %1\n%3 = scalar value=3.0\n"
       "%4 = mul %2 %3\noutput %4 \"y\"\n"},
#define QX "%0 = input u8[$0,8] \"x\"\n%1 = param i8[4,8] \"w\"\n%2 = param f32[] \"s\"\n"              \
           "%3 = param f32[4,1] \"t\"\n"
#define QW "%8 = cast %1\n%9 = mul %8 %3\n"
    /* The result is f32, and there is no zero point; other readers of the dequantized x stay. */
    {"quantize",
     QX "%4 = cast %0 dtype=i32\n%6 = cast %4\n%7 = mul %6 %2\n" QW
        "%10 = linear %7 %9\n%11 = exp %7\noutput %10 \"y\"\noutput %11 \"z\"\n",
     QX "%4 = scalar value=0.0 dtype=i32\n%5 = expand %4 shape=[1]\n%6 = reshape %3 shape=[4]\n"
        "%7 = expand %2 shape=[1]\n%8 = mul %6 %7\n%9 = scalar value=0.0\n"
        "%10 = expand %9 shape=[4]\n%11 = quant_linear %0 %1 %5 %8 %10\n%12 = cast %0 dtype=i32\n"
        "%13 = cast %12\n%14 = mul %13 %2\n%15 = exp %14\noutput %11 \"y\"\noutput %15 \"z\"\n"},
    /* The result is quantized, after a relu; the limits of the range follow from it. */
    {"quantize",
     QX "%20 = param f32[] \"u\"\n%4 = cast %0\n%7 = mul %4 %2\n" QW
        "%10 = linear %7 %9\n%11 = relu %10\n%12 = div %11 %20\n%13 = round %12\n"
        "%14 = clamp %13 min=-128.0 max=127.0\n%15 = cast %14 dtype=i8\noutput %15 \"y\"\n",
     QX "%4 = param f32[] \"u\"\n%5 = scalar value=0.0 dtype=i32\n%6 = expand %5 shape=[1]\n"
        "%7 = reshape %3 shape=[4]\n%8 = expand %2 shape=[1]\n%9 = mul %7 %8\n"
        "%10 = expand %4 shape=[1]\n%11 = div %9 %10\n%12 = scalar value=0.0\n"
        "%13 = expand %12 shape=[4]\n%14 = div %13 %10\n%15 = scalar value=0.0\n"
        "%16 = expand %15 shape=[1]\n%17 = scalar value=0.0\n%18 = expand %17 shape=[1]\n"
        "%19 = div %18 %10\n%20 = round %19\n%21 = add %20 %16\n%22 = scalar value=-128.0\n"
        "%23 = expand %22 shape=[1]\n%24 = maximum %21 %23\n%25 = scalar value=127.0\n"
        "%26 = expand %25 shape=[1]\n%27 = minimum %24 %26\n%28 = scalar value=127.0\n"
        "%29 = expand %28 shape=[1]\n%30 = scalar value=-128.0\n%31 = expand %30 shape=[1]\n"
        "%32 = maximum %29 %31\n%33 = concat %16 %27 %32 axis=0\n"
        "%34 = quant_linear %0 %1 %6 %11 %14 %33 dtype=i8\noutput %34 \"y\"\n"},
/* A sum of two quantized tensors that is quantized: its scales are divided, not the sum. */
#define SUM "%0 = input u8[$0,8] \"x\"\n%1 = input u8[$0,8] \"z\"\n%2 = param f32[] \"s\"\n"          \
            "%3 = param f32[] \"t\"\n%4 = param f32[] \"u\"\n"
    {"quantize",
     SUM "%5 = cast %0\n%6 = mul %5 %2\n%7 = cast %1\n%8 = mul %7 %3\n%9 = add %6 %8\n"
         "%10 = div %9 %4\n%11 = round %10\noutput %11 \"y\"\n",
     SUM "%5 = cast %0\n%6 = div %2 %4\n%7 = mul %5 %6\n%8 = cast %1\n%9 = div %3 %4\n"
         "%10 = mul %8 %9\n%11 = add %7 %10\n%12 = round %11\noutput %12 \"y\"\n"},
#undef SUM
    /* A sum of floats. */
    {"quantize",
     "%0 = input f32[$0,8] \"x\"\n%1 = param f32[] \"s\"\n%2 = mul %0 %1\n%3 = exp %0\n%4 = mul %3 %1\n"
     "%5 = add %2 %4\n%6 = div %5 %1\n%7 = round %6\noutput %7 \"y\"\n",
     NULL},
    /* A weight with a zero point, and padding by a zero point of which it is not known that it is of x's type. */
    {"quantize",
     QX "%20 = param i8[] \"zero\"\n%4 = cast %0\n%7 = mul %4 %2\n%21 = cast %1 dtype=i32\n"
        "%22 = cast %20 dtype=i32\n%23 = sub %21 %22\n%24 = cast %23\n%25 = mul %24 %3\n"
        "%10 = linear %7 %25\noutput %10 \"y\"\n",
     NULL},
    {"quantize",
     "%0 = input u8[$0,8,6,6] \"x\"\n%1 = param i8[4,8,3,3] \"w\"\n%2 = param f32[] \"s\"\n"
     "%3 = param i32[] \"zero\"\n%4 = cast %0 dtype=i32\n%5 = sub %4 %3\n%6 = cast %5\n"
     "%7 = mul %6 %2\n%8 = cast %1\n%9 = mul %8 %2\n%10 = conv %7 %9 pad=[1,1,1,1]\n"
     "output %10 \"y\"\n",
     NULL},
    {"fold",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[4,1,1] \"s\"\n%3 = conv %0 %1\n"
       "%4 = mul %3 %2\noutput %4 \"y\"\n",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[4,1,1] \"s\"\n"
       "%3 = reshape %2 shape=[4]\n%4 = reshape %3 shape=[4,1,1,1]\n%5 = mul %1 %4\n"
       "%6 = conv %0 %5\noutput %6 \"y\"\n"},
    {"fold",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[4] \"b\"\n"
       "%3 = param f32[4,1,1] \"t\"\n%4 = conv %0 %1 %2\n%5 = add %3 %4\n"
       "output %5 \"y\"\n",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[4] \"b\"\n"
       "%3 = param f32[4,1,1] \"t\"\n%4 = reshape %3 shape=[4]\n%5 = add %2 %4\n"
       "%6 = conv %0 %1 %5\noutput %6 \"y\"\n"},
    {"fold",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[4,1,1] \"s\"\n%3 = conv %0 %1\n"
       "%4 = mul %3 %2\noutput %4 \"y\"\noutput %3 \"z\"\n",
     NULL},
    {"fold",
     X "%1 = param f32[4,8,1,1] \"w\"\n%2 = param f32[6] \"s\"\n%3 = conv %0 %1\n"
       "%4 = mul %3 %2\noutput %4 \"y\"\n",
     NULL},
    /* Windows side by side, of 512 inputs; one that is narrow; one whose sums are not only moved. */
    {"patches",
     "%0 = input f32[$0,8,16,16] \"x\"\n%1 = param f32[4,8,8,8] \"w\"\n"
     "%2 = conv %0 %1 stride=[8,8]\noutput %2 \"y\"\n",
     "%0 = input f32[$0,8,16,16] \"x\"\n%1 = param f32[4,8,8,8] \"w\"\n"
     "%2 = reshape %0 shape=[$0,8,2,8,2,8]\n%3 = permute %2 axes=[0,2,4,1,3,5]\n"
     "%4 = reshape %3 shape=[$0,4,512]\n%5 = reshape %1 shape=[4,512]\n%6 = linear %4 %5\n"
     "%7 = permute %6 axes=[0,2,1]\n%8 = reshape %7 shape=[$0,4,2,2]\noutput %8 \"y\"\n"},
    {"patches",
     "%0 = input f32[$0,64,16,16] \"x\"\n%1 = param f32[4,64,4,4] \"w\"\n"
     "%2 = conv %0 %1 stride=[4,4]\noutput %2 \"y\"\n",
     NULL},
    {"patches",
     "%0 = input f32[$0,8,16,16] \"x\"\n%1 = param f32[4,8,8,8] \"w\"\n"
     "%2 = conv %0 %1 stride=[8,8]\n%3 = relu %2\noutput %3 \"y\"\n",
     NULL},
    {"patches",
     "%0 = input f32[$0,8,3,5] \"x\"\n%1 = param f32[64,8,3,5] \"w\"\n%2 = param f32[64] \"b\"\n"
     "%3 = conv %0 %1 %2\noutput %3 \"y\"\n",
     "%0 = input f32[$0,8,3,5] \"x\"\n%1 = param f32[64,8,3,5] \"w\"\n%2 = param f32[64] \"b\"\n"
     "%3 = reshape %0 shape=[$0,120]\n%4 = reshape %1 shape=[64,120]\n%5 = linear %3 %4 %2\n"
     "%6 = reshape %5 shape=[$0,64,1,1]\noutput %6 \"y\"\n"},
    {"patches",
     "%0 = input f32[$0,8,1,1] \"x\"\n%1 = param f32[4,8,3,5] \"w\"\n%2 = param f32[4] \"b\"\n"
     "%3 = conv %0 %1 %2 pad=[2,3,1,2]\noutput %3 \"y\"\n",
     "%0 = input f32[$0,8,1,1] \"x\"\n%1 = param f32[4,8,3,5] \"w\"\n%2 = param f32[4] \"b\"\n"
     "%3 = reshape %0 shape=[$0,8]\n%4 = slice %1 axis=2 start=2 step=-1 shape=[2]\n"
     "%5 = slice %4 axis=3 start=3 step=-1 shape=[2]\n%6 = permute %5 axes=[0,2,3,1]\n"
     "%7 = reshape %6 shape=[16,8]\n%8 = reshape %2 shape=[4,1]\n%9 = expand %8 shape=[4,4]\n"
     "%10 = reshape %9 shape=[16]\n%11 = linear %3 %7 %10\n"
     "%12 = reshape %11 shape=[$0,4,2,2]\noutput %12 \"y\"\n"},
    {"patches",
     "%0 = input f32[$0,8,1,1] \"x\"\n%1 = param f32[4,8,3,3] \"w\"\n"
     "%2 = conv %0 %1 pad=[1,0,1,3]\noutput %2 \"y\"\n",
     NULL},
    {"patches",
     "%0 = input f32[$0,8,16,15] \"x\"\n%1 = param f32[4,8,8,8] \"w\"\n"
     "%2 = conv %0 %1 stride=[8,8]\noutput %2 \"y\"\n",
     NULL},
    {"cse", X "%1 = exp %0\n%2 = exp %0\n%3 = add %1 %2\noutput %3 \"y\"\n",
     X "%1 = exp %0\n%2 = add %1 %1\noutput %2 \"y\"\n"},
    {"cse",
     X "%1 = param f32[8,1,1] \"a\"\n%2 = param f32[8,1,1] \"b\"\n%3 = add %0 %1\n"
       "%4 = add %0 %2\n%5 = mul %3 %4\noutput %5 \"y\"\n",
     NULL},
    {"cse",
     X "%1 = clamp %0 max=6.0\n%2 = clamp %0 max=5.0\n%3 = add %1 %2\n"
       "output %3 \"y\"\n",
     NULL},
    /* What BACKWARD can compute of saved values is not saved; other values are, also if layers read them that need memory. */
    {"recompute",
     V "%1 = input f32[$0,8] \"g\" backward\n%2 = param f32[8,8] \"w\"\n%3 = linear %0 %2\n"
       "%4 = exp %3\n%5 = mul %4 %1\n%6 = mul %3 %1\noutput %4 \"y\"\n"
       "output %5 \"a\" backward\noutput %6 \"b\" backward\n",
     V "%1 = input f32[$0,8] \"g\" backward\n%2 = param f32[8,8] \"w\"\n%3 = linear %0 %2\n"
       "%4 = exp %3\n%5 = mul %3 %1\n%6 = exp %3\n%7 = mul %6 %1\noutput %4 \"y\"\n"
       "output %7 \"a\" backward\noutput %5 \"b\" backward\n"},
    {"recompute",
     V "%1 = input f32[$0,8] \"g\" backward\n%2 = param f32[8,8] \"w\"\n%3 = linear %0 %2\n"
       "%4 = exp %3\n%5 = mul %4 %1\noutput %4 \"y\"\noutput %5 \"a\" backward\n",
     NULL},
    {"recompute",
     V "%1 = input f32[8,$0] \"g\" backward\n%2 = exp %0\n%3 = matmul %1 %2\noutput %2 \"y\"\n"
       "output %3 \"a\" backward\n",
     NULL},
